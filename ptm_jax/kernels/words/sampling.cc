// Skip-gram and CBOW with negative sampling: several SGD updates in place, on the threads of a CPU.
//
// The definition is objectives/windows.py (NegativeSampling) under SGD. An update has two parts, each done by whichever thread
// is free: first every row's gradients, from the same tables; then, for every word of the update, the sum of its gradients in
// the order of rows, which is taken from its vector. Results therefore do not depend on the number of threads. With n-grams
// (encoders/static.py) an update has one part before these, the vectors of its distinct words, and one after: the change of
// a word's vector is that of all of its rows.

#include <atomic>
#include <cmath>
#include <thread>

#include "../buffers.h"
#include "../vectors.h"
#include "adding.h"
#include "ngrams.h"
#include "threads.h"

struct Sizes {
  int length, noise, width, padded, columns, reach;  // columns: of noise words, padded
  float share;
  bool means;  // CBOW: states are means of the neighbours, and predict the word
  float* of(const Numbers& rows, int i) const { return rows.data + size_t(i) * padded; }
};

// The gradients of a row: by places those of input and output vectors, and those of noise words.
struct Row {
  Numbers in, out, noise;
  std::vector<Entry> entries[PARTS];
  double loss = 0;
  int centres = 0, pairs = 0;
  explicit Row(const Sizes& s)
      : in(size_t(s.length) * s.padded), out(size_t(s.length) * s.padded), noise(size_t(s.columns) * s.padded) {}
};

// The words and the draws of a row; `given` are their numbers in the table of input vectors, of `shares` rows each (null: 1).
struct Text {
  const int32_t *ids, *segments, *windows, *noise, *given, *shares;
};

// Computes the gradients of a row.
struct Computer {
  struct Near {
    int32_t centre, at;
  };
  Sizes s;
  Numbers x, gx, in, out, z, turned;  // states, their gradients; vectors of words, of noise words, the same turned
  Numbers g, weights, slopes;         // of states and noise words: gradients of scores, counts; gradients of the targets' scores
  std::vector<int32_t> places, starts, words;  // of the centres; of their neighbours, in `words`
  std::vector<Near> near;                      // the centres whose neighbour a word is, [length, 2 reach]
  std::vector<int32_t> count, hit;             // number of these; whether the word is a noise word
  std::vector<Term> terms;

  explicit Computer(const Sizes& s, size_t rows, size_t noise, size_t scores, size_t pairs)
      : s(s), x(rows), gx(rows), in(rows), out(rows), z(noise), turned(noise), g(scores), weights(scores),
        slopes(pairs + LANES), near(pairs), count(s.length), hit(s.length), terms(2 * s.reach + 1) {}

  explicit Computer(const Sizes& s)
      : Computer(s, size_t(s.length) * s.padded, size_t(s.columns) * s.padded, size_t(s.length) * s.columns,
                 size_t(s.length) * 2 * s.reach) {}

  // The targets of centre c are first(c) to first(c + 1) in `targets`: its neighbours, or the word itself.
  int first(int c) const { return s.means ? c : starts[c]; }
  const int32_t* targets() const { return s.means ? places.data() : words.data(); }

  void compute(const float* input, const float* output, const Text& text, Row& row) {
    find(text);
    row.centres = places.size(), row.pairs = first(row.centres), row.loss = 0;
    for (auto& part : row.entries) part.clear();
    if (places.empty()) return;
    read(input, output, text);
    count_noise(text);
    int centres = places.size(), padded = s.padded, columns = s.columns;
    product(centres, columns, s.width, x.data, padded, 1, turned.data, columns, g.data, columns);
    Vec total{}, cost;
    for (int i = 0; i < centres * columns; i += LANES) {
      Vec weight = all(s.share) * load(weights.data + i), right = sigmoid(load(g.data + i), &cost);
      store(g.data + i, weight * right);
      total += weight * cost;
    }
    product(centres, padded, s.noise, g.data, columns, 1, z.data, padded, gx.data, padded);
    product(s.noise, padded, centres, g.data, 1, columns, x.data, padded, row.noise.data, padded);
    row.loss = sum(total) + towards(row);
    list(text, row);
  }

  // Finds the centres, and the pairs of centres and neighbours.
  void find(const Text& text) {
    places.clear(), words.clear(), starts.assign(1, 0);
    std::fill(count.begin(), count.end(), 0);
    for (int t = 0; t < s.length; ++t) {
      int reach = text.segments[t] > 0 ? std::min(text.windows[t], s.reach) : 0, high = std::min(s.length - 1, t + reach);
      size_t before = words.size();
      for (int u = std::max(0, t - reach); u <= high; ++u) {
        if (u == t || text.segments[u] != text.segments[t]) continue;
        near[size_t(u) * 2 * s.reach + count[u]++] = {int(places.size()), int(words.size())};
        words.push_back(u);
      }
      if (words.size() == before) continue;
      places.push_back(t), starts.push_back(words.size());
    }
  }

  void fetch(float* to, const float* table, int32_t id) const { std::memcpy(to, table + size_t(id) * s.width, s.width * 4); }
  void soon(const float* table, int32_t id) const {
    for (int d = 0; d < s.width; d += 16) __builtin_prefetch(table + size_t(id) * s.width + d);
  }

  void read(const float* input, const float* output, const Text& text) {
    for (int u = 0; u < s.length; ++u) {
      if (u + 4 < s.length) soon(input, text.given[u + 4]), soon(output, text.ids[u + 4]);
      if (count[u]) fetch(s.of(s.means ? in : out, u), s.means ? input : output, s.means ? text.given[u] : text.ids[u]);
    }
    for (int c = 0; c < int(places.size()); ++c) {
      int t = places[c], n = starts[c + 1] - starts[c];
      if (!s.means) {
        fetch(s.of(x, c), input, text.given[t]);
        continue;
      }
      fetch(s.of(out, t), output, text.ids[t]);
      int rows = text.shares ? 0 : n;
      for (int i = 0; text.shares && i < n; ++i) rows += text.shares[text.given[words[starts[c] + i]]];
      for (int i = 0; i < n; ++i) terms[i] = {s.of(in, words[starts[c] + i]), 1.0f / rows};
      combine(s.of(x, c), s.padded, terms.data(), n);
    }
    for (int m = 0; m < s.noise; ++m) {
      if (m + 4 < s.noise) soon(output, text.noise[m + 4]);
      fetch(s.of(z, m), output, text.noise[m]);
    }
    for (int m = 0; m < s.columns; m += 4) {
      for (int d = 0; d < s.width; d += 4) {
        Quad quads[4];
        for (int i = 0; i < 4; ++i) quads[i] = quad(s.of(z, m + i) + d);
        turn(quads[0], quads[1], quads[2], quads[3]);
        for (int i = 0; i < 4; ++i) quad(turned.data + size_t(d + i) * s.columns + m) = quads[i];
      }
    }
  }

  // Counts the predictions for which a word is noise: it is none where it is the predicted word.
  void count_noise(const Text& text) {
    for (int u = 0; u < s.length; ++u) {
      int32_t any = 0;
      for (int m = 0; m < s.noise; ++m) any |= text.noise[m] == text.ids[u];
      hit[u] = any;
    }
    for (int c = 0; c < int(places.size()); ++c) {
      float *own = weights.data + size_t(c) * s.columns, predictions = first(c + 1) - first(c);
      for (int m = 0; m < s.noise; ++m) own[m] = predictions;
      for (int i = first(c); i < first(c + 1); ++i) {
        int u = targets()[i], id = text.ids[u];
        if (!hit[u]) continue;
        for (int m = 0; m < s.noise; ++m) own[m] -= float(text.noise[m] == id);
      }
    }
  }

  // Adds the gradients of the predicted words. Returns their loss.
  double towards(Row& row) {
    int centres = places.size(), all_of = first(centres);
    const int32_t* target = targets();
    float* slope = slopes.data;
    for (int c = 0; c < centres; ++c) {
      for (int i = first(c), last = first(c + 1) - 1; i <= last; i += 4) {
        const float* rows[4];
        for (int j = 0; j < 4; ++j) rows[j] = s.of(out, target[std::min(i + j, last)]);
        quad(slope + i) = -dots(s.of(x, c), rows, s.padded);
      }
    }
    for (int i = all_of; i < all_of + LANES; ++i) slope[i] = -80;
    Vec total{}, cost;
    for (int i = 0; i < all_of; i += LANES) {
      store(slope + i, -sigmoid(load(slope + i), &cost));
      total += cost;
    }
    for (int c = 0; c < centres; ++c) {
      int n = first(c + 1) - first(c);
      for (int i = 0; i < n; ++i) terms[i + 1] = {s.of(out, target[first(c) + i]), slope[first(c) + i]};
      terms[0] = {s.of(gx, c), 1.0f};
      combine(s.means ? s.of(gx, c) : s.of(row.in, places[c]), s.padded, terms.data(), n + 1);
      terms[0] = {s.of(x, c), slope[c]};
      if (s.means) combine(s.of(row.out, places[c]), s.padded, terms.data(), 1);
    }
    for (int u = 0; u < s.length; ++u) {
      const Near* from = &near[size_t(u) * 2 * s.reach];
      for (int n = 0; n < count[u]; ++n) {
        terms[n] = s.means ? Term{s.of(gx, from[n].centre), 1.0f} : Term{s.of(x, from[n].centre), slope[from[n].at]};
      }
      if (count[u]) combine(s.of(s.means ? row.in : row.out, u), s.padded, terms.data(), count[u]);
    }
    return sum(total);
  }

  void list(const Text& text, Row& row) const {
    auto add = [&](int32_t id, Table table, const float* slope) { row.entries[id % PARTS].push_back({4u * id + table, slope}); };
    Table side = text.shares ? CHANGE : INPUT;
    for (int t : places) s.means ? add(text.ids[t], OUTPUT, s.of(row.out, t)) : add(text.given[t], side, s.of(row.in, t));
    for (int u = 0; u < s.length; ++u) {
      if (count[u]) s.means ? add(text.given[u], side, s.of(row.in, u)) : add(text.ids[u], OUTPUT, s.of(row.out, u));
    }
    for (int m = 0; m < s.noise; ++m) add(text.noise[m], OUTPUT, s.of(row.noise, m));
  }
};

// sums = [loss, centres, pairs, gradient norms] of all updates. Update m has the rows m, m + updates, ...
static ffi::Error descend(Floats in0, Floats out0, Floats ngrams0, Words pieces, Words ids, Words segments, Words windows,
                          Words noise, Floats rate, ffi::Result<Floats> in1, ffi::Result<Floats> out1,
                          ffi::Result<Floats> ngrams1, ffi::Result<Floats> sums, int64_t updates, int64_t window, float k,
                          float limit, bool means, int64_t threads) {
  auto dims = ids.dimensions();
  int rows = dims[0], length = dims[1], width = in0.dimensions()[1], drawn = noise.dimensions()[1];
  float* tables[] = {in1->typed_data(), out1->typed_data(), ngrams1->typed_data(), nullptr};
  const Floats* before[] = {&in0, &out0, &ngrams0};
  for (int n = 0; n < 3; ++n) {
    if (tables[n] != before[n]->typed_data()) std::memcpy(tables[n], before[n]->typed_data(), before[n]->size_bytes());
  }
  bool several = pieces.element_count() > 0;
  NGrams ngrams{pieces.typed_data(), pieces.typed_data() + in0.dimensions()[0] + 1, width, means};
  Sizes s{length, drawn, width, whole(width), whole(drawn), int(window), k / drawn, means};
  int each = rows / updates, team = std::max<int>(1, std::min<int>(threads > 0 ? threads : cores(), each));
  std::vector<Row> row;
  std::vector<Lists> pieces_of(several ? (each * length + CHUNK - 1) / CHUNK : 0);
  row.reserve(each);
  for (int r = 0; r < each; ++r) row.emplace_back(s);
  double loss = 0, centres = 0, pairs = 0, norms = 0;
  std::vector<std::atomic<int>> next(updates), part(updates), word(updates), piece(updates);
  std::vector<double> norm(updates * PARTS);
  std::vector<Distinct> distinct(several ? updates : 0);
  Staged staged(several ? size_t(each) * length : 0, s.padded);
  Barrier barrier(team);
  auto work = [&](int me) {
    Computer computer(s);
    Adder adder(width, s.padded);
    if (limit > 0) adder.limit = limit;
    auto at = [&](const Words& field, int m, int r, int size) {
      return field.typed_data() + size_t(m + r * updates) * size;
    };
    for (int m = me; several && m < updates; m += team) {
      distinct[m].find(each, length, means, [&](int r) {
        return Places{at(ids, m, r, length), at(segments, m, r, length), at(windows, m, r, length)};
      });
    }
    if (several) barrier.wait();
    for (int m = 0; m < updates; ++m) {
      const Distinct* words = several ? &distinct[m] : nullptr;
      int chunks = several ? words->chunks() : 0;
      for (int c = chunks ? word[m]++ : 0; c < chunks; c = word[m]++) ngrams.read(tables, *words, c, staged, pieces_of[c]);
      if (several) barrier.wait();
      for (int r = next[m]++; r < each; r = next[m]++) {  // a core may be shared with the stream of batches
        Text text{at(ids, m, r, length), at(segments, m, r, length), at(windows, m, r, length), at(noise, m, r, drawn)};
        text.given = several ? &words->slots[size_t(r) * length] : text.ids;
        text.shares = several ? staged.rows.data() : nullptr;
        computer.compute(several ? staged.vectors.data : tables[INPUT], tables[OUTPUT], text, row[r]);
      }
      barrier.wait();
      size_t there = 0;
      for (auto& one : row) there += one.centres;
      float step = there ? rate.typed_data()[0] / float(there) : 0.0f;
      auto entries = [&](int r, int p) -> const std::vector<Entry>& { return row[r].entries[p]; };
      auto more = [&](int c, int p) -> const std::vector<Entry>& { return pieces_of[c].of[p]; };
      for (int p = part[m]++; p < PARTS; p = part[m]++) {
        norm[m * PARTS + p] = adder.add(each, p, entries, step, tables, staged.changes.data);
      }
      if (!me) {
        for (auto& one : row) loss += one.loss, pairs += one.pairs;
        centres += double(there);
      }
      barrier.wait();
      for (int p = several ? piece[m]++ : PARTS; p < PARTS; p = piece[m]++) {
        norm[m * PARTS + p] += adder.add(chunks, p, more, step, tables, nullptr);
      }
      if (several) barrier.wait();
      double squares = 0;
      for (int p = 0; p < PARTS; ++p) squares += norm[m * PARTS + p];
      if (!me && there) norms += std::sqrt(squares) / there;
    }
  };
  together(team, work);
  float* found = sums->typed_data();
  found[0] = float(loss), found[1] = float(centres), found[2] = float(pairs), found[3] = float(norms);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_words_descend, descend,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("updates")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("k")
                                  .Attr<float>("limit")
                                  .Attr<bool>("means")
                                  .Attr<int64_t>("threads"));
