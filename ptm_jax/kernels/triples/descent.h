// Updates of the rows of a table in place: gradients of one row are summed in the order in which they were listed.

#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "../parts.h"
#include "../vectors.h"

enum Kind { SGD, ADAGRAD, ADAM };

// `first` and `second` are the factors of Adam's bias correction: of the mean, and of the root of the mean square.
struct Rule {
  int kind;
  float rate, b1, b2, eps, first, second;
};

// Moves a row of `width` numbers against its gradient.
static void move(float* value, float* mu, float* nu, const float* slope, const Rule& rule, int width) {
  auto step = [&](auto g, auto x, auto m, auto n, auto of, auto root_of) {
    using Number = decltype(g);
    if (rule.kind == SGD) return std::tuple<Number, Number, Number>(x - of(rule.rate) * g, m, n);
    if (rule.kind == ADAGRAD) {
      n = n + g * g;
      return std::tuple<Number, Number, Number>(x - of(rule.rate) * g / (root_of(n) + of(rule.eps)), m, n);
    }
    m = of(rule.b1) * m + of(1 - rule.b1) * g, n = of(rule.b2) * n + of(1 - rule.b2) * g * g;
    auto direction = of(rule.first) * m / (root_of(n) * of(rule.second) + of(rule.eps));
    return std::tuple<Number, Number, Number>(x - of(rule.rate) * direction, m, n);
  };
  bool first = rule.kind == ADAM, second = rule.kind != SGD;
  auto every = [](float x) { return all(x); };
  auto roots = [](Vec v) { return root(v); };
  int d = 0;
  for (; d + LANES <= width; d += LANES) {
    Vec m = first ? load(mu + d) : Vec{}, n = second ? load(nu + d) : Vec{};
    auto [x, mean, square] = step(load(slope + d), load(value + d), m, n, every, roots);
    store(value + d, x);
    if (first) store(mu + d, mean);
    if (second) store(nu + d, square);
  }
  for (; d < width; ++d) {
    auto same = [](float x) { return x; };
    auto one_root = [](float x) { return std::sqrt(x); };
    auto [x, mean, square] = step(slope[d], value[d], first ? mu[d] : 0.0f, second ? nu[d] : 0.0f, same, one_root);
    value[d] = x;
    if (first) mu[d] = mean;
    if (second) nu[d] = square;
  }
}

struct Table {
  float *value, *mu, *nu;
  int64_t size;
  int width, padded;
};

// The places in a list where each of its numbers stands; numbers below 0 are none.
struct Chains {
  std::vector<int32_t> ids, heads, next;

  // `whole`: of all numbers below `size`, with an empty chain for those that the list lacks.
  Chains(const std::vector<int32_t>& list, int64_t size, bool whole) : next(list.size(), -1) {
    std::vector<int32_t> tails;
    size_t slots = 64;
    while (slots < 2 * list.size()) slots *= 2;
    std::vector<int32_t> slot(whole ? 0 : slots, -1);
    if (whole) {
      ids.resize(size), heads.assign(size, -1), tails.assign(size, -1);
      for (int64_t i = 0; i < size; ++i) ids[i] = i;
    }
    for (size_t k = 0; k < list.size(); ++k) {
      if (list[k] < 0) continue;
      int32_t found = list[k];
      if (!whole) {
        size_t at = (uint32_t(found) * 2654435769u >> 7) & (slots - 1);
        while (slot[at] >= 0 && ids[slot[at]] != list[k]) at = (at + 1) & (slots - 1);
        if (slot[at] < 0) slot[at] = ids.size(), ids.push_back(list[k]), heads.push_back(-1), tails.push_back(-1);
        found = slot[at];
      }
      (heads[found] < 0 ? heads[found] : next[tails[found]]) = k;
      tails[found] = k;
    }
  }
};

// Updates the rows of the chains. Place k of the list has the gradient slopes + k * padded. Returns the square of the gradient's norm.
static double descend(xla::ffi::ThreadPool pool, const Table& table, const Chains& chains, const float* slopes, const Rule& rule) {
  constexpr int64_t EACH = 128;
  int64_t count = chains.ids.size();
  std::vector<float> squares(count);
  in_turn(pool, (count + EACH - 1) / EACH, [&](int64_t part) {
    Numbers total(table.padded);
    int64_t end = std::min(count, (part + 1) * EACH);
    for (int64_t n = part * EACH; n < end; ++n) {
      if (n + 2 < end) {
        size_t ahead = size_t(chains.ids[n + 2]) * table.width;
        for (int d = 0; d < table.width; d += 16) {
          __builtin_prefetch(table.value + ahead + d, 1);
          if (rule.kind == ADAM) __builtin_prefetch(table.mu + ahead + d, 1);
          if (rule.kind != SGD) __builtin_prefetch(table.nu + ahead + d, 1);
        }
      }
      const float* slope = total.data;
      int32_t head = chains.heads[n];
      if (head >= 0 && chains.next[head] < 0) {
        slope = slopes + size_t(head) * table.padded;
      } else {
        for (int d = 0; d < table.padded; d += LANES) {
          Vec sum{};
          for (int32_t k = head; k >= 0; k = chains.next[k]) sum += load(slopes + size_t(k) * table.padded + d);
          store(total.data + d, sum);
        }
      }
      squares[n] = dot(slope, slope, table.padded);
      size_t at = size_t(chains.ids[n]) * table.width;
      move(table.value + at, table.mu + at, table.nu + at, slope, rule, table.width);
    }
  });
  double norm = 0;
  for (float square : squares) norm += square;
  return norm;
}
