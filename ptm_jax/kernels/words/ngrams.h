// Words whose vectors are sums or means of several rows: their own and those of their n-grams.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "adding.h"
#include "../vectors.h"

constexpr int CHUNK = 16;  // distinct words that a thread reads at a time

struct Places {
  const int32_t *ids, *segments, *windows;
};

// The distinct words of an update that states are made of, in the order of their first places.
struct Distinct {
  std::vector<int32_t> ids, slots;  // words; for every place [rows, length] the number of its word in `ids`
  int chunks() const { return (int(ids.size()) + CHUNK - 1) / CHUNK; }

  // `means`: states are made of all words (CBOW), not of the centres alone.
  template <class Rows>
  void find(int rows, int length, bool means, Rows row) {
    uint32_t size = 256;
    while (size < 2u * rows * length) size *= 2;
    std::vector<int32_t> table(size, -1);
    slots.assign(size_t(rows) * length, 0);
    for (int r = 0; r < rows; ++r) {
      Places text = row(r);
      for (int t = 0; t < length; ++t) {
        if (text.segments[t] <= 0 || (!means && text.windows[t] <= 0)) continue;
        uint32_t at = (uint32_t(text.ids[t]) * 2654435769u >> 8) & (size - 1);
        while (table[at] >= 0 && ids[table[at]] != text.ids[t]) at = (at + 1) & (size - 1);
        if (table[at] < 0) table[at] = ids.size(), ids.push_back(text.ids[t]);
        slots[size_t(r) * length + t] = table[at];
      }
    }
  }
};

// By distinct word: its vector [width] and number of rows, and the sum of its gradients [padded].
struct Staged {
  Numbers vectors, changes;
  std::vector<int32_t> rows;
  Staged(size_t words, int padded) : vectors(words * padded), changes(words * padded), rows(words) {}
};

struct Lists {
  std::vector<Entry> of[PARTS];
};

struct NGrams {
  const int32_t *bounds, *pieces;
  int width;
  bool means;

  // Makes the vectors of the words of a chunk; CBOW divides later. Lists the rows that they change.
  void read(float* const* tables, const Distinct& words, int chunk, Staged& staged, Lists& lists) const {
    int end = std::min<int>(words.ids.size(), (chunk + 1) * CHUNK);
    for (auto& part : lists.of) part.clear();
    std::vector<Term> terms;
    auto row = [&](int32_t id, int n) { return n < 0 ? tables[INPUT] + size_t(id) * width : tables[NGRAM] + size_t(pieces[n]) * width; };
    auto soon = [&](const float* from) {
      for (int d = 0; d < width; d += 16) __builtin_prefetch(from + d);
    };
    for (int slot = chunk * CHUNK; slot < end; ++slot) {
      int32_t id = words.ids[slot];
      int first = bounds[id], last = bounds[id + 1], count = 1 + last - first;
      if (slot + 1 < end) {
        int32_t other = words.ids[slot + 1];
        soon(row(other, -1));
        for (int n = bounds[other]; n < bounds[other + 1]; ++n) soon(row(other, n));
      }
      float *change = staged.changes.data + size_t(slot) * whole(width), share = means ? 1.0f : 1.0f / count;
      std::memset(change, 0, whole(width) * sizeof(float));
      staged.rows[slot] = count;
      terms.assign(1, {row(id, -1), share});
      lists.of[id % PARTS].push_back({4u * id + INPUT, change});
      for (int n = first; n < last; ++n) {
        terms.push_back({row(id, n), share});
        lists.of[pieces[n] % PARTS].push_back({4u * pieces[n] + NGRAM, change});
      }
      combine_rows(staged.vectors.data + size_t(slot) * width, width, terms.data(), count);
    }
  }
};
