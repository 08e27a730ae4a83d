// Which keys a query sees: the fields of tokens, and the spans of keys that a block of queries may see.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

enum Kind { SAME, AT_MOST, GROUP, IGNORED };  // rules of a field of tokens: `KINDS` of cpu.py

struct Fields {
  const int32_t *q_fields, *k_fields, *kinds;  // [rows, fields, queries], [rows, fields, keys], [fields]
  int64_t queries, keys, fields;
};

// The keys first .. first + count - 1, filled up to whole vectors: `longer`.
struct Span {
  int64_t first, count, longer;
};

// Extremes of a field in each block of `side` tokens: {least, greatest}.
static std::vector<int32_t> extremes(const int32_t* field, int64_t length, int64_t side) {
  std::vector<int32_t> result;
  for (int64_t start = 0; start < length; start += side) {
    auto ends = std::minmax_element(field + start, field + std::min(length, start + side));
    result.push_back(*ends.first);
    result.push_back(*ends.second);
  }
  return result;
}

// For each block of `side` queries of a row, the span of the blocks of keys that one of them may see. `side` is whole vectors.
static std::vector<Span> spans_of(const Fields& w, int64_t row, int64_t side, int64_t lanes) {
  int64_t high = (w.queries + side - 1) / side, wide = (w.keys + side - 1) / side;
  std::vector<char> met(high * wide, 1);
  for (int64_t f = 0; f < w.fields; ++f) {
    if (w.kinds[f] != SAME && w.kinds[f] != AT_MOST) continue;
    auto q = extremes(w.q_fields + (row * w.fields + f) * w.queries, w.queries, side);
    auto k = extremes(w.k_fields + (row * w.fields + f) * w.keys, w.keys, side);
    for (int64_t i = 0; i < high; ++i)
      for (int64_t j = 0; j < wide; ++j)
        met[i * wide + j] &= k[2 * j] <= q[2 * i + 1] && (w.kinds[f] == AT_MOST || q[2 * i] <= k[2 * j + 1]);
  }
  std::vector<Span> spans;
  for (int64_t i = 0; i < high; ++i) {
    const char *line = met.data() + i * wide, *start = std::find(line, line + wide, 1), *end = line + wide;
    while (end > start && !end[-1]) --end;
    int64_t first = (start - line) * side, count = std::min(w.keys, (end - line) * side) - first;
    spans.push_back(end == start ? Span{0, 0, 0} : Span{first, count, (count + lanes - 1) / lanes * lanes});
  }
  return spans;
}

// seen[j]: all bits if query i of a row sees key j of a span, else 0. `allow` are the query's own permissions, or null.
static void look(const Fields& w, int64_t row, int64_t i, const bool* allow, Span span, int32_t* seen) {
  std::fill(seen, seen + span.count, -1);
  for (int64_t f = 0; f < w.fields; ++f) {
    const int32_t* k = w.k_fields + (row * w.fields + f) * w.keys + span.first;
    int32_t q = w.q_fields[(row * w.fields + f) * w.queries + i];
    if (w.kinds[f] == SAME)
      for (int64_t j = 0; j < span.count; ++j) seen[j] &= -(k[j] == q);
    else if (w.kinds[f] == AT_MOST)
      for (int64_t j = 0; j < span.count; ++j) seen[j] &= -(k[j] <= q);
    else if (w.kinds[f] == GROUP)
      for (int64_t j = 0; j < span.count; ++j) seen[j] &= -((k[j] == 0) | (k[j] == q));
  }
  if (allow)
    for (int64_t j = 0; j < span.count; ++j) seen[j] &= -int32_t(allow[span.first + j]);
}
