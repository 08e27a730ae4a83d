// Vectors of the registers' size, 8 or 16 numbers: the compiler is given the processor (-march=native). Small products, sums of
// vectors with factors, square roots and the logistic function.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

#ifndef LANES
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));
constexpr int TALL = LANES == 16 ? 12 : 6;  // rows of a tile: its sums, two columns and a factor fill the registers

INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
INLINE void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
INLINE Vec all(float x) { return x - Vec{}; }
INLINE float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < LANES; ++i) total += v[i];
  return total;
}

INLINE Vec root(Vec v) {
#if defined(__AVX512F__) && LANES == 16
  return (Vec)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX__) && LANES == 8
  return (Vec)_mm256_sqrt_ps((__m256)v);
#else
  Vec r;
  for (int i = 0; i < LANES; ++i) r[i] = __builtin_sqrtf(v[i]);
  return r;
#endif
}

static float dot(const float* a, const float* b, int width) {
  Vec one = Vec{}, two = Vec{};
  int d = 0;
  for (; d + 2 * LANES <= width; d += 2 * LANES) {
    one += load(a + d) * load(b + d);
    two += load(a + d + LANES) * load(b + d + LANES);
  }
  float total = sum(one + two);
  for (; d < width; ++d) total += a[d] * b[d];
  return total;
}

// exp of x in [-80, 0], to 2e-7.
INLINE Vec exponential(Vec x) {
  Vec t = x * all(1.44269504f);
  Vec whole = (t + all(12582912.0f)) - all(12582912.0f);
  Vec f = (t - whole) * all(0.69314718f);
  Vec p = (all(1.0f / 720) * f + all(1.0f / 120)) * f + all(1.0f / 24);
  p = (((p * f + all(1.0f / 6)) * f + all(0.5f)) * f + all(1.0f)) * f + all(1.0f);
  Ints n = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Vec scale;
  std::memcpy(&scale, &n, sizeof(scale));
  return p * scale;
}

// Returns sigmoid(s), and softplus(s) = max(s, 0) + log(1 + e), e = exp(-|s|). The logarithm is 2 artanh(e / (2 + e)), to 1e-7.
INLINE Vec sigmoid(Vec s, Vec* softplus) {
  Vec size = s < all(0.0f) ? s : -s;
  Vec e = exponential(size < all(-80.0f) ? all(-80.0f) : size);
  Vec one = all(1.0f) + e, two = one + all(1.0f), inverse = all(1.0f) / (one * two), z = e * one * inverse, square = z * z;
  Vec p = (all(1.0f / 11) * square + all(1.0f / 9)) * square + all(1.0f / 7);
  p = ((p * square + all(1.0f / 5)) * square + all(1.0f / 3)) * square + all(1.0f);
  *softplus = (s > all(0.0f) ? s : all(0.0f)) + all(2.0f) * z * p;
  return (s < all(0.0f) ? e : all(1.0f)) * two * inverse;
}

// C [M, N vectors] (ldc) = A(i, p) B [k, N vectors] (ldb), A(i, p) = a[i * ra + p * ca].
template <int M, int N>
INLINE void tile(int k, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
  Vec sums[M][N];
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) sums[i][j] = Vec{};
  }
  for (int p = 0; p < k; ++p) {
    Vec columns[N];
    for (int j = 0; j < N; ++j) columns[j] = load(b + p * ldb + j * LANES);
    for (int i = 0; i < M; ++i) {
      Vec x = all(a[i * ra + p * ca]);
      for (int j = 0; j < N; ++j) sums[i][j] += x * columns[j];
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) store(c + i * ldc + j * LANES, sums[i][j]);
  }
}

template <int N, int M = TALL>
static void tiles(int rows, int k, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
  if (rows == M) return tile<M, N>(k, a, ra, ca, b, ldb, c, ldc);
  if constexpr (M > 1) tiles<N, M - 1>(rows, k, a, ra, ca, b, ldb, c, ldc);
}

// C [m, n] = A B; n is a multiple of LANES.
static void product(int m, int n, int k, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
  for (int j = 0; j < n; j += 2 * LANES) {
    auto some = n - j > LANES ? tiles<2> : tiles<1>;
    for (int i = 0, rows; i < m; i += rows) {
      rows = std::min(m - i, TALL);
      if (m - i == TALL + 1 || m - i == TALL + 2) rows = (m - i + 1) / 2;  // a tile of few rows waits for its own sums
      some(rows, k, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc);
    }
  }
}

// A vector and its factor in a sum.
struct Term {
  const float* row;
  float factor;
};


// to [N vectors] = the sum of the terms' columns from `at`; `to` may be one of them.
template <int N>
INLINE void some(float* to, const Term* terms, int count, int at) {
  Vec sums[N];
  for (int j = 0; j < N; ++j) sums[j] = Vec{};
  for (int n = 0; n < count; ++n) {
    Vec factor = all(terms[n].factor);
    for (int j = 0; j < N; ++j) sums[j] += factor * load(terms[n].row + at + j * LANES);
  }
  for (int j = 0; j < N; ++j) store(to + at + j * LANES, sums[j]);
}

static inline int whole(int n) { return (n + LANES - 1) / LANES * LANES; }

static void combine(float* to, int padded, const Term* terms, int count) {
  int at = 0;
  for (; at + 8 * LANES <= padded; at += 8 * LANES) some<8>(to, terms, count, at);
  for (; at + 4 * LANES <= padded; at += 4 * LANES) some<4>(to, terms, count, at);
  for (; at < padded; at += LANES) some<1>(to, terms, count, at);
}

// The same of rows [width] without room behind them.
static void combine_rows(float* to, int width, const Term* terms, int count) {
  combine(to, width / LANES * LANES, terms, count);
  if (width % LANES && width > LANES) return some<1>(to, terms, count, width - LANES);
  for (int d = width / LANES * LANES; d < width; ++d) {
    to[d] = 0;
    for (int n = 0; n < count; ++n) to[d] += terms[n].factor * terms[n].row[d];
  }
}

// Turns four vectors of four numbers.
INLINE void turn(Quad& a, Quad& b, Quad& c, Quad& d) {
  Quad low = __builtin_shufflevector(a, b, 0, 4, 1, 5), high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  Quad less = __builtin_shufflevector(c, d, 0, 4, 1, 5), more = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(low, less, 0, 1, 4, 5), b = __builtin_shufflevector(low, less, 2, 3, 6, 7);
  c = __builtin_shufflevector(high, more, 0, 1, 4, 5), d = __builtin_shufflevector(high, more, 2, 3, 6, 7);
}
INLINE Quad& quad(float* p) { return *reinterpret_cast<Quad*>(p); }

// The sums of the numbers of four vectors.
INLINE Quad totals(const Vec sums[4]) {
  float parts[4][LANES];
  Quad quads[4];
  for (int i = 0; i < 4; ++i) {
    store(parts[i], sums[i]);
    quads[i] = quad(parts[i]);
    for (int j = 4; j < LANES; j += 4) quads[i] += quad(parts[i] + j);
  }
  turn(quads[0], quads[1], quads[2], quads[3]);
  return (quads[0] + quads[1]) + (quads[2] + quads[3]);
}

// The products of a vector with four others.
INLINE Quad dots(const float* x, const float* const rows[4], int padded) {
  Vec sums[4] = {};
  for (int d = 0; d < padded; d += LANES) {
    Vec left = load(x + d);
    for (int i = 0; i < 4; ++i) sums[i] += left * load(rows[i] + d);
  }
  return totals(sums);
}

// Numbers at the start of a line of the cache, first zero.
struct Numbers {
  std::vector<float> memory;
  float* data;
  explicit Numbers(size_t size) : memory(size + 16), data(memory.data() + 16 - reinterpret_cast<uintptr_t>(memory.data()) / 4 % 16) {}
  Numbers(Numbers&&) = default;
};
