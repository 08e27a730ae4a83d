// Products of small matrices whose operands are units: a float, or a pair of bfloat16 that a processor multiplies and sums in float32.

#pragma once

#include "../types.h"

typedef uint32_t Pair;  // two numbers of the summed dimension, the first one in the lower half
constexpr int HIGH = LANES == 16 ? 6 : 4, BROAD = LANES == 16 ? 4 : 2;  // rows and vectors of a tile

template <typename U>
constexpr int SIZE = std::is_same_v<U, Pair> ? 2 : 1;
template <typename U>
using Number = std::conditional_t<std::is_same_v<U, Pair>, Brain, float>;

typedef float Sums __attribute__((vector_size(4 * LANES)));  // stays in registers, where Vec may alias memory
INLINE Sums added(Sums sums, float a, Sums b) { return sums + a * b; }
INLINE Sums vector_at(const float* p) {
  Sums v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
#ifdef __AVX512BF16__
INLINE Sums added(Sums sums, Pair a, __m512i b) {
  return (Sums)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
}
INLINE __m512i vector_at(const Pair* p) { return _mm512_loadu_si512(p); }
using OfBrain = Pair;
#else
using OfBrain = float;
#endif

// C [m, n] = A B, or C + A B: A(i, p) = a[i * ra + p * ca] for p < k units, B [k, n] units. Numbers after a name are distances.
template <int M, int N, bool ADD, typename U>
INLINE void block(int64_t k, const U* a, int64_t ra, int64_t ca, const U* b, int64_t ldb, float* c, int64_t ldc) {
  Sums sums[M][N];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sums[i][j] = ADD ? vector_at(c + i * ldc + j * LANES) : Sums{};
  for (int64_t p = 0; p < k; ++p, a += ca, b += ldb) {
    decltype(vector_at(b)) columns[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) columns[j] = vector_at(b + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      U x = a[i * ra];
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sums[i][j] = added(sums[i][j], x, columns[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) std::memcpy(c + i * ldc + j * LANES, &sums[i][j], sizeof(Sums));
}

template <int N, bool ADD, typename U, int M = HIGH>
static void blocks(int64_t rows, int64_t k, const U* a, int64_t ra, int64_t ca, const U* b, int64_t ldb, float* c, int64_t ldc) {
  if (rows >= M) return block<M, N, ADD>(k, a, ra, ca, b, ldb, c, ldc);
  if constexpr (M > 1) blocks<N, ADD, U, M - 1>(rows, k, a, ra, ca, b, ldb, c, ldc);
}

template <bool ADD = false, typename U>
static void matrices(int64_t m, int64_t n, int64_t k, const U* a, int64_t ra, int64_t ca, const U* b, int64_t ldb, float* c,
                     int64_t ldc) {
  for (int64_t j = 0, wide; j < n; j += wide) {
    wide = n - j >= BROAD * LANES ? BROAD * LANES : LANES;
    auto some = wide > LANES ? blocks<BROAD, ADD, U> : blocks<1, ADD, U>;
    for (int64_t i = 0; i < m; i += HIGH)
      some(std::min<int64_t>(HIGH, m - i), k, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc);
  }
}

// Copies rows [count, width] at a distance into [to_count, padded] numbers, filled up with zeros.
template <typename E, typename T>
static void gather(const T* x, int64_t step, int64_t count, int64_t width, E* to, int64_t to_count, int64_t padded) {
  for (int64_t i = 0; i < to_count; ++i, x += step, to += padded) {
    if (i >= count) {
      std::memset(to, 0, padded * sizeof(E));
      continue;
    }
    if constexpr (std::is_same_v<E, T>)
      std::memcpy(to, x, width * sizeof(E));
    else
      across(width, [&](int64_t d) { store(to + d, read(x + d)); },
             [&](int64_t d, int64_t n) { std::memset(to + d, 0, (padded - d) * sizeof(E)), write_some(to + d, read_some(x + d, n), n); });
    std::memset(to + width, 0, (padded - width) * sizeof(E));
  }
}

// Units of the columns of x [rows, columns]: [columns / SIZE, rows]. Both counts are multiples of 4 units.
template <typename U>
static void turned(const Number<U>* x, int64_t rows, int64_t columns, U* to) {
  int64_t wide = columns / SIZE<U>;
  const float* from = reinterpret_cast<const float*>(x);
  float* out = reinterpret_cast<float*>(to);
  for (int64_t i = 0; i < rows; i += 4)
    for (int64_t p = 0; p < wide; p += 4) {
      Quad some[4];
      for (int r = 0; r < 4; ++r) std::memcpy(&some[r], from + (i + r) * wide + p, sizeof(Quad));
      turn(some[0], some[1], some[2], some[3]);
      for (int r = 0; r < 4; ++r) std::memcpy(out + (p + r) * rows + i, &some[r], sizeof(Quad));
    }
}

// Units of the rows of x [rows, columns]: [rows / SIZE, columns]; for a float x itself.
static const float* joined(const float* x, int64_t, int64_t, float*) { return x; }
static const Pair* joined(const Brain* x, int64_t rows, int64_t columns, Pair* to) {
  for (int64_t i = 0; i < rows; i += 2)
    for (int64_t d = 0; d < columns; ++d)
      to[i / 2 * columns + d] = x[i * columns + d] | Pair(x[(i + 1) * columns + d]) << 16;
  return to;
}
