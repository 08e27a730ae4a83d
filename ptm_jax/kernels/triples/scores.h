// Losses of the triples of one row of a batch, and their gradients with respect to the vectors that the row reads.
//
// A query q is made of a vector x, the head or the tail, and of the relation; its answer is the other one. It is compared with the K
// noise vectors c of the row by small products that stay in the cache.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../vectors.h"

enum Score { L1, L2, PLANES, PRODUCT };  // TransE with either norm, TransH, DistMult
constexpr float TINY = 1e-12f;           // least squared length and distance, whose root has a gradient

struct Settings {
  int score;
  bool softmax, both, unit;
  float margin, soft, epsilon, decay;
  int triples, noise, width, padded, columns;  // padded: of a vector; columns: of a row of scores
  float share, each;                           // of a triple and a side in the loss; of a triple in the constraints
};

struct Sums {
  double loss = 0, ordered = 0, constraints = 0;
};

INLINE void add(float* to, const float* from, float factor, int padded) {
  for (int d = 0; d < padded; d += LANES) store(to + d, load(to + d) + all(factor) * load(from + d));
}
INLINE Vec size(Vec v) { return v < all(0.0f) ? -v : v; }
INLINE Vec sign(Vec v) { return (v > all(0.0f) ? all(1.0f) : all(0.0f)) - (v < all(0.0f) ? all(1.0f) : all(0.0f)); }

// The gradient of u = x / max(|x|, 1e-6) becomes that of x; `inverse` is 1 / max(|x|, 1e-6).
INLINE void through_unit(float* slope, const float* u, float inverse, int padded) {
  if (inverse < 1e6f) add(slope, u, -dot(slope, u, padded), padded);
  for (int d = 0; d < padded; d += LANES) store(slope + d, load(slope + d) * all(inverse));
}

// Brings a vector to length 1; returns 1 / max(|x|, 1e-6).
INLINE float to_unit(float* x, int padded) {
  float inverse = 1.0f / std::sqrt(std::max(dot(x, x, padded), TINY));
  for (int d = 0; d < padded; d += LANES) store(x + d, load(x + d) * all(inverse));
  return inverse;
}

// The vectors of a row and their gradients; matrices have rows of `padded` numbers, or of `columns`.
struct Row {
  const Settings& s;
  float *h, *r, *t, *w, *c, *turned, *q, *slope_q, *made, *scores, *along, *first, *second, *extra, *norms, *sums, *counts;
  float *slope_h, *slope_r, *slope_t, *slope_w, *slope_c;  // where the caller keeps them
  int64_t step;                                            // between triples of slope_h, slope_r and slope_t
  const int32_t *heads, *tails, *noise;                    // ids; those of heads and tails 3 apart

  static size_t room(const Settings& s) {
    return size_t(7 * s.triples + 2 * s.noise) * s.padded + size_t(s.padded + 4 * s.triples + 3) * s.columns;
  }

  // `memory` has `room` numbers, of any values.
  Row(const Settings& s, float* memory) : s(s) {
    auto next = [&](size_t count) { return std::exchange(memory, memory + count); };
    size_t rows = size_t(s.triples) * s.padded, others = size_t(s.noise) * s.padded, grid = size_t(s.triples) * s.columns;
    h = next(rows), r = next(rows), t = next(rows), w = next(rows), q = next(rows), slope_q = next(rows), made = next(rows);
    c = next(others), extra = next(others), turned = next(size_t(s.padded) * s.columns);
    scores = next(grid), along = next(grid), first = next(grid), second = next(grid);
    sums = next(s.columns), norms = next(s.columns), counts = next(s.columns);
  }

  // Adds the loss of one side of all triples, and its gradients. there[i]: whether a triple counts; sides[i]: its head is asked for.
  void side(const bool* there, const int32_t* sides, Sums& out) {
    int T = s.triples, P = s.padded, C = s.columns;
    for (int i = 0; i < T; ++i) query(i, sides[i]);
    product(T, C, s.width, q, P, 1, turned, C, scores, C);
    if (s.score == PLANES) product(T, C, s.width, w, P, 1, turned, C, along, C);
    if (s.score == L1) apart();
    std::memset(slope_q, 0, size_t(T) * P * sizeof(float));
    for (int i = 0; i < T; ++i) {
      if (there[i]) {
        triple(i, sides[i], out);
      } else {
        std::memset(first + size_t(i) * C, 0, C * sizeof(float)), std::memset(second + size_t(i) * C, 0, C * sizeof(float));
      }
    }
    s.score == L1 ? signs() : candidates();
    for (int i = 0; i < T; ++i) {
      if (there[i]) parts_of_query(i, sides[i]);
    }
  }

 private:
  void query(int i, bool tail) {
    const float *x = (tail ? t : h) + size_t(i) * s.padded, *link = r + size_t(i) * s.padded, *normal = w + size_t(i) * s.padded;
    float* to = q + size_t(i) * s.padded;
    Vec turn = all(tail ? -1.0f : 1.0f);
    for (int d = 0; d < s.padded; d += LANES) {
      store(to + d, s.score == PRODUCT ? load(x + d) * load(link + d) : load(x + d) + turn * load(link + d));
    }
    if (s.score == PLANES) add(to, normal, -dot(x, normal, s.padded), s.padded);
  }

  // Scores of the norm 1, where no product helps.
  void apart() {
    for (int i = 0; i < s.triples; ++i) {
      for (int k = 0; k < s.noise; ++k) {
        Vec total{};
        for (int d = 0; d < s.padded; d += LANES) total += size(load(q + size_t(i) * s.padded + d) - load(c + size_t(k) * s.padded + d));
        scores[size_t(i) * s.columns + k] = sum(total);
      }
    }
  }

  // The squared distance of a query to its answer, or the distance (norm 1) or the product; v: q - answer, off the plane's normal.
  float paired(const float* a, const float* query, const float* normal, float* v) const {
    if (s.score == PRODUCT) return dot(query, a, s.padded);
    for (int d = 0; d < s.padded; d += LANES) store(v + d, load(query + d) - load(a + d));
    if (s.score == PLANES) add(v, normal, dot(normal, a, s.padded), s.padded);
    if (s.score != L1) return dot(v, v, s.padded);
    Vec total{};
    for (int d = 0; d < s.padded; d += LANES) total += size(load(v + d));
    return sum(total);
  }

  // The score of a product, a distance (norm 1) or a squared distance.
  Vec scored(Vec found) const {
    if (s.score == PRODUCT) return found;
    return -(s.score == L1 ? found : root(found > all(TINY) ? found : all(TINY)));
  }
  // The gradient with respect to a squared distance, where there is one, from that with respect to its score.
  Vec inner(Vec g, Vec score) const {
    if (s.score == PRODUCT || s.score == L1) return g;
    return score < all(-1.0000001e-6f) ? all(0.5f) * g / score : all(0.0f);
  }
  float scored(float found) const { return scored(all(found))[0]; }
  float inner(float g, float score) const { return inner(all(g), all(score))[0]; }

  // The loss of triple i: the factors of its candidates go to first[i] and second[i], the gradients of its answer where they belong.
  void triple(int i, bool tail, Sums& out) {
    int P = s.padded;
    size_t at = size_t(i) * P, grid = size_t(i) * s.columns;
    const float *a = (tail ? h : t) + at, *normal = w + at, *query = q + at;
    float* slope_a = (tail ? slope_h : slope_t) + i * step;
    int32_t answer = (tail ? heads : tails)[3 * i];
    float* v = extra;  // of P numbers
    float found = paired(a, query, normal, v), good = scored(found), square = dot(query, query, P), beta = dot(query, normal, P);
    float *value = scores + grid, *lies = along + grid;
    if (s.score == L2 || s.score == PLANES) {
      for (int k = 0; k < s.columns; k += LANES) {
        Vec alpha = s.score == PLANES ? load(lies + k) : Vec{};
        store(value + k, all(square) + load(norms + k) - all(2.0f) * load(value + k) + alpha * (all(2 * beta) - alpha));
      }
    }
    for (int k = 0; k < s.columns; k += LANES) store(value + k, scored(load(value + k)));
    float* g = first + grid;
    float slope = s.softmax ? softmax(answer, good, value, g, out) : hinge(answer, good, value, g, out);
    float e = inner(slope, good), total = 0, lean = 0;
    for (int k = 0; k < s.columns; k += LANES) store(g + k, inner(load(g + k), load(value + k)));
    if (s.score == L1) {
      for (int d = 0; d < P; d += LANES) {
        Vec step = all(e) * sign(load(v + d));
        store(slope_q + at + d, load(slope_q + at + d) - step), store(slope_a + d, load(slope_a + d) + step);
      }
      return;
    }
    if (s.score == PRODUCT) {
      add(slope_q + at, a, e, P), add(slope_a, query, e, P);
      return;
    }
    Vec sum_of_g{}, sum_lean{};
    for (int k = 0; k < s.columns; k += LANES) {
      Vec twice = all(2.0f) * load(g + k);
      store(g + k, twice), sum_of_g += twice;
      if (s.score != PLANES) continue;
      sum_lean += twice * load(lies + k), store(second + grid + k, twice * (all(beta) - load(lies + k)));
    }
    total = sum(sum_of_g), lean = sum(sum_lean);
    add(slope_q + at, v, 2 * e, P), add(slope_q + at, query, total, P);
    add(slope_a, v, -2 * e, P);
    if (s.score == PLANES) {
      float alpha = dot(normal, a, P), pull = dot(v, normal, P);
      float* slope_normal = slope_w + at;
      add(slope_a, normal, 2 * e * pull, P), add(slope_normal, a, 2 * e * pull, P), add(slope_normal, v, 2 * e * alpha, P);
      add(slope_q + at, normal, lean, P), add(slope_normal, query, lean, P);
    }
  }

  // counts: 1 for the noise that is not the answer, else 0. Returns its number, and adds the share that the answer beats.
  float counted(int32_t answer, float good, const float* value, Sums& out) const {
    Vec beaten{}, others{};
    for (int k = 0; k < s.columns; k += LANES) {
      Vec one{};
      for (int i = 0; i < LANES; ++i) one[i] = k + i < s.noise && noise[k + i] != answer;
      store(counts + k, one), others += one, beaten += load(value + k) < all(good) ? one : Vec{};
    }
    float number = std::max(sum(others), 1.0f);
    out.ordered += sum(beaten) / number;
    return number;
  }

  // -log softmax of the true entity; returns the gradient of its score, and those of the candidates' in g.
  float softmax(int32_t answer, float good, const float* value, float* g, Sums& out) const {
    counted(answer, good, value, out);
    Vec high = all(good), total{};
    for (int k = 0; k < s.columns; k += LANES) {
      Vec there = load(counts + k) > all(0.5f) ? load(value + k) : all(good);
      high = there > high ? there : high;
    }
    float most = good;
    for (int i = 0; i < LANES; ++i) most = std::max(most, high[i]);
    for (int k = 0; k < s.columns; k += LANES) {
      Vec below = load(value + k) - all(most);
      Vec power = load(counts + k) * exponential(below < all(-80.0f) ? all(-80.0f) : below > all(0.0f) ? all(0.0f) : below);
      store(g + k, power), total += power;
    }
    float mine = std::exp(good - most), whole = sum(total) + mine;
    for (int k = 0; k < s.columns; k += LANES) store(g + k, load(g + k) * all(s.share / whole));
    out.loss += std::log(whole) + most - good;
    return s.share * (mine / whole - 1);
  }

  // The mean hinge over the candidates; returns and writes what `softmax` does.
  float hinge(int32_t answer, float good, const float* value, float* g, Sums& out) const {
    float others = counted(answer, good, value, out);
    Vec loss{}, slopes{};
    for (int k = 0; k < s.columns; k += LANES) {
      Vec over = all(s.margin - good) + load(value + k), slope = over > all(0.0f) ? load(counts + k) * all(s.share / others) : Vec{};
      store(g + k, slope), slopes += slope, loss += over > all(0.0f) ? load(counts + k) * over : Vec{};
    }
    out.loss += sum(loss) / others;
    return -sum(slopes);
  }

  // Gradients through the scores of all candidates: products of their factors with the candidates and with the queries.
  void candidates() {
    int T = s.triples, K = s.noise, P = s.padded, C = s.columns;
    bool apart = s.score != PRODUCT;
    product(T, P, K, first, C, 1, c, P, made, P);
    for (int i = 0; i < T; ++i) add(slope_q + size_t(i) * P, made + size_t(i) * P, apart ? -1.0f : 1.0f, P);
    if (s.score == PLANES) {
      product(T, P, K, second, C, 1, c, P, made, P);
      for (int i = 0; i < T; ++i) add(slope_w + size_t(i) * P, made + size_t(i) * P, 1.0f, P);
    }
    float* other = extra;  // [K, P]
    product(K, P, T, first, 1, C, q, P, other, P);
    for (int k = 0; k < K; ++k) add(slope_c + size_t(k) * P, other + size_t(k) * P, apart ? -1.0f : 1.0f, P);
    if (!apart) return;
    std::memset(sums, 0, C * sizeof(float));
    for (int i = 0; i < T; ++i) add(sums, first + size_t(i) * C, 1.0f, C);
    for (int k = 0; k < K; ++k) add(slope_c + size_t(k) * P, c + size_t(k) * P, sums[k], P);
    if (s.score != PLANES) return;
    product(K, P, T, second, 1, C, w, P, other, P);
    for (int k = 0; k < K; ++k) add(slope_c + size_t(k) * P, other + size_t(k) * P, 1.0f, P);
  }

  void signs() {
    for (int i = 0; i < s.triples; ++i) {
      float* mine = slope_q + size_t(i) * s.padded;
      for (int k = 0; k < s.noise; ++k) {
        float g = first[size_t(i) * s.columns + k];
        if (g == 0) continue;
        float* theirs = slope_c + size_t(k) * s.padded;
        for (int d = 0; d < s.padded; d += LANES) {
          Vec step = all(g) * sign(load(q + size_t(i) * s.padded + d) - load(c + size_t(k) * s.padded + d));
          store(mine + d, load(mine + d) - step), store(theirs + d, load(theirs + d) + step);
        }
      }
    }
  }

  void parts_of_query(int i, bool tail) {
    int P = s.padded;
    size_t at = size_t(i) * P;
    const float *g = slope_q + at, *x = (tail ? t : h) + at, *link = r + at, *normal = w + at;
    float *slope_x = (tail ? slope_t : slope_h) + i * step, *slope_link = slope_r + i * step, *slope_normal = slope_w + at;
    if (s.score == PRODUCT) {
      for (int d = 0; d < P; d += LANES) {
        store(slope_x + d, load(slope_x + d) + load(g + d) * load(link + d));
        store(slope_link + d, load(slope_link + d) + load(g + d) * load(x + d));
      }
      return;
    }
    add(slope_x, g, 1.0f, P), add(slope_link, g, tail ? -1.0f : 1.0f, P);
    if (s.score != PLANES) return;
    float pull = dot(g, normal, P), along_x = dot(x, normal, P);
    add(slope_x, normal, -pull, P), add(slope_normal, g, -along_x, P), add(slope_normal, x, -pull, P);
  }
};
