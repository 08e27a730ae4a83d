// GloVe: several AdaGrad updates in place, on the threads of a CPU.
//
// The definition is objectives/glove.py (GloVe) under Adagrad(scaled=True). All gradients of an update are of the
// parameters before it. A thread updates the words whose number is its own modulo the threads, in the order of cells, so
// results do not depend on the number of threads.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "../buffers.h"
#include "../vectors.h"
#include "threads.h"

// value -= step / sqrt(past); past += step ** 2, step = scale * slope. Returns the sum of the squared steps.
static float descend_row(float* value, float* past, const float* slope, float scale, int width) {
  int d = 0;
  Vec squares = Vec{};
  for (; d + LANES <= width; d += LANES) {
    Vec step = all(scale) * load(slope + d), before = load(past + d);
    store(value + d, load(value + d) - step / root(before));
    store(past + d, before + step * step);
    squares += step * step;
  }
  float total = sum(squares);
  for (; d < width; ++d) {
    float step = scale * slope[d], before = past[d];
    value[d] -= step / __builtin_sqrtf(before);
    past[d] = before + step * step;
    total += step * step;
  }
  return total;
}

static void prefetch(const float* row, int width) {
  for (int d = 0; d < width; d += 16) __builtin_prefetch(row + d, 1);
}

// The cells of an update by their words: chains in the order of cells, of the words that belong to a thread.
struct Chains {
  std::vector<int32_t> slot, next, last, heads;
  int mask;

  explicit Chains(int cells) : next(cells), last(cells) {
    int size = 4;
    while (size < 2 * cells) size *= 2;
    slot.assign(size, -1);
    mask = size - 1;
    heads.reserve(cells);
  }

  void build(const std::vector<int32_t>& ids, int me, int team) {
    for (int32_t& s : slot) s = -1;
    heads.clear();
    for (int k = 0; k < int(ids.size()); ++k) {
      if (ids[k] % team != me) continue;
      int at = find(ids, ids[k]);
      next[k] = -1;
      if (slot[at] < 0) {
        slot[at] = last[k] = k;
        heads.push_back(k);
      } else {
        next[last[slot[at]]] = k;
        last[slot[at]] = k;
      }
    }
  }

  int find(const std::vector<int32_t>& ids, int32_t id) const {
    int at = (uint32_t(id) * 2654435769u >> 7) & mask;
    while (slot[at] >= 0 && ids[slot[at]] != id) at = (at + 1) & mask;
    return at;
  }
};

// Of cells (i, j) with logarithms and shares f(X) [B, L] (share 0: no cell), sums = [loss, cells, norms of the gradients]. Update m has
// the rows m, m + updates, ... The rates are of the mean over its cells: of w, b, v, c.
static ffi::Error cells(Floats w0, Floats b0, Floats v0, Floats c0, Floats sw0, Floats sb0, Floats sv0, Floats sc0, Words i,
                        Words j, Floats logs, Floats shares, Floats rates, Made w1, Made b1, Made v1, Made c1, Made sw1,
                        Made sb1, Made sv1, Made sc1, Made sums, int64_t updates, int64_t threads) {
  int rows = i.dimensions()[0], length = i.dimensions()[1], width = w0.dimensions()[1], each = rows / updates;
  float *w = taken(w0, w1), *b = taken(b0, b1), *v = taken(v0, v1), *c = taken(c0, c1);
  float *sw = taken(sw0, sw1), *sb = taken(sb0, sb1), *sv = taken(sv0, sv1), *sc = taken(sc0, sc1);
  int team = std::max<int>(1, threads > 0 ? threads : cores()), most = each * length;
  std::vector<int32_t> first(most), second(most);
  std::vector<float> log(most), share(most), slope(most), old(size_t(most) * width), squares(2 * most);
  Barrier barrier(team);
  double loss = 0, count = 0, norms = 0;
  auto work = [&](int me) {
    Chains chains(most);
    std::vector<float> total(width);
    for (int m = 0; m < updates; ++m) {
      if (!me) {
        first.clear(), second.clear();
        std::fill(squares.begin(), squares.end(), 0.0f);
        for (int r = 0; r < each; ++r) {
          size_t at = size_t(m + r * updates) * length;
          for (int t = 0; t < length; ++t) {
            if (shares.typed_data()[at + t] <= 0) continue;
            int k = first.size();
            first.push_back(i.typed_data()[at + t]);
            second.push_back(j.typed_data()[at + t]);
            log[k] = logs.typed_data()[at + t];
            share[k] = shares.typed_data()[at + t];
          }
        }
      }
      barrier.wait();
      int n = first.size(), low = int64_t(n) * me / team, high = int64_t(n) * (me + 1) / team;
      for (int k = low; k < high; ++k) {
        if (k + 4 < high) {
          prefetch(w + size_t(first[k + 4]) * width, width);
          prefetch(v + size_t(second[k + 4]) * width, width);
        }
        const float* row = w + size_t(first[k]) * width;
        std::memcpy(&old[size_t(k) * width], row, width * sizeof(float));
        slope[k] = dot(row, v + size_t(second[k]) * width, width) + b[first[k]] + c[second[k]] - log[k];
      }
      barrier.wait();
      if (!me) {
        for (int k = 0; k < n; ++k) {
          loss += 0.5 * double(share[k]) * slope[k] * slope[k];
        }
        count += n;
      }
      // Adds the gradients of a side's words, each from the rows `other(k)` of its cells.
      auto side = [&](const std::vector<int32_t>& ids, float* table, float* bias, float* sum, float* square,
                      const float* rate, float* norm, auto other) {
        float vectors = n ? rate[0] / n : 0.0f, biases = n ? rate[1] / n : 0.0f;
        chains.build(ids, me, team);
        const std::vector<int32_t>& heads = chains.heads;
        for (size_t h = 0; h < heads.size(); ++h) {
          if (h + 3 < heads.size()) prefetch(sum + size_t(ids[heads[h + 3]]) * width, width);
          int k = heads[h];
          size_t id = ids[k];
          float whole = share[k] * slope[k];
          float found;
          if (chains.next[k] < 0) {
            found = descend_row(table + id * width, sum + id * width, other(k), vectors * whole, width);
          } else {
            std::fill(total.begin(), total.end(), 0.0f);
            whole = 0;
            for (; k >= 0; k = chains.next[k]) {
              float factor = share[k] * slope[k];
              const float* row = other(k);
              for (int d = 0; d < width; ++d) total[d] += factor * row[d];
              whole += factor;
            }
            found = descend_row(table + id * width, sum + id * width, total.data(), vectors, width);
          }
          float step = biases * whole;
          bias[id] -= step / __builtin_sqrtf(square[id]);
          square[id] += step * step;
          norm[heads[h]] = (rate[0] ? found / (rate[0] * rate[0]) : 0) + whole * whole / (float(n) * n);
        }
      };
      side(first, w, b, sw, sb, rates.typed_data(), squares.data(), [&](int k) { return v + size_t(second[k]) * width; });
      barrier.wait();
      side(second, v, c, sv, sc, rates.typed_data() + 2, squares.data() + most, [&](int k) { return &old[size_t(k) * width]; });
      barrier.wait();
      if (!me) {
        double total = 0;
        for (float square : squares) total += square;
        norms += std::sqrt(total);
      }
    }
  };
  together(team, work);
  sums->typed_data()[0] = float(loss), sums->typed_data()[1] = float(count), sums->typed_data()[2] = float(norms);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_words_cells, cells,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("updates")
                                  .Attr<int64_t>("threads"));
