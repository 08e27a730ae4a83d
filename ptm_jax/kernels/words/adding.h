// The gradients of an update: those of one vector are summed in the order in which they were listed, and taken from it.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../vectors.h"

constexpr int PARTS = 8;  // of the vectors of an update, taken by threads one after another

// CHANGE: the sum is kept for the rows of which the vector is made.
enum Table : uint32_t { INPUT, OUTPUT, NGRAM, CHANGE };

// The gradient of row key / 4 of the table key % 4.
struct Entry {
  uint32_t key;
  const float* slope;
};

struct Adder {
  std::vector<uint32_t> slots;  // of vectors: 1 + the place in `found`, 0 where free
  struct Found {
    uint32_t key, slot;
    int head, tail;
  };
  std::vector<Found> found;
  std::vector<const float*> slopes;
  std::vector<int> next;
  std::vector<Term> terms;
  int width, padded;
  Numbers total;
  float limit = INFINITY;  // of the norm of a row's change
  Adder(int width, int padded) : width(width), padded(padded), total(padded) {}

  // Adds the entries of all lists(r, part), r below `rows`. Returns the square of the norm of what tables got.
  template <class Lists>
  double add(int rows, int part, Lists lists, float rate, float* const* tables, float* changes) {
    size_t all_of = 0, size = 256;
    for (int r = 0; r < rows; ++r) all_of += lists(r, part).size();
    while (size < 2 * all_of) size *= 2;
    if (slots.size() < size) slots.assign(size, 0);
    size = slots.size();
    found.clear(), slopes.clear(), next.clear(), terms.reserve(all_of);
    auto vector = [&](uint32_t key) { return tables[key & 3] + size_t(key >> 2) * width; };
    for (int r = 0; r < rows; ++r) {
      for (auto& entry : lists(r, part)) {
        uint32_t slot = (entry.key * 2654435769u >> 8) & (size - 1);
        while (slots[slot] && found[slots[slot] - 1].key != entry.key) slot = (slot + 1) & (size - 1);
        int place = slopes.size();
        slopes.push_back(entry.slope), next.push_back(-1);
        if (slots[slot]) {
          Found& one = found[slots[slot] - 1];
          next[one.tail] = place, one.tail = place;
        } else {
          found.push_back({entry.key, slot, place, place});
          slots[slot] = found.size();
          if ((entry.key & 3) == CHANGE) continue;
          for (int d = 0; d < width; d += 16) __builtin_prefetch(vector(entry.key) + d, 1);
        }
      }
    }
    double norm = 0;
    for (auto& one : found) {
      slots[one.slot] = 0;
      terms.clear();
      for (int n = one.head; n >= 0; n = next[n]) terms.push_back({slopes[n], 1.0f});
      if ((one.key & 3) == CHANGE) {
        combine(changes + size_t(one.key >> 2) * padded, padded, terms.data(), terms.size());
        continue;
      }
      if (terms.size() > 1) combine(total.data, padded, terms.data(), terms.size());
      float* to = vector(one.key);
      const float* from = terms.size() > 1 ? total.data : slopes[one.head];
      Vec squares{};
      for (int d = 0; d < padded; d += LANES) squares += load(from + d) * load(from + d);
      float square = sum(squares), step = rate;
      if (rate * rate * square > limit * limit) step = limit / std::sqrt(square);
      for (int d = 0; d < width; ++d) to[d] -= step * from[d];
      norm += square;
    }
    return norm;
  }
};
