// y = float32(int8 x) @ (int8 kernel) with the scales of rows and columns, on the threads of a CPU.
//
// Rows of x are rounded to whole numbers in [-levels, levels], by their own greatest magnitude or a given one. Where the processor
// has VNNI, 128 is added to make them unsigned bytes, four products of bytes add up in 32 bits, and 128 times the sum of a column is
// taken off. Elsewhere products of 16-bit pairs add up in 32 bits. No sum saturates.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "../parts.h"

namespace ffi = xla::ffi;
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
using Whole = uint8_t;   // of a row of x, MIDDLE for 0
using Weight = int8_t;
constexpr int GROUP = 4, MIDDLE = 128, WIDE = 32, TALL = 12;  // numbers that an instruction adds up; columns, rows of a tile
struct Sums {
  __m512i a, b;
};
INLINE Sums zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
struct Groups {
  __m512i a, b;
};
INLINE Groups groups(const Weight* p) { return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64)}; }
INLINE void add(Sums& s, const Groups& w, const Whole* x) {
  int32_t all;
  std::memcpy(&all, x, 4);
  __m512i row = _mm512_set1_epi32(all);
  s.a = _mm512_dpbusd_epi32(s.a, row, w.a);
  s.b = _mm512_dpbusd_epi32(s.b, row, w.b);
}
INLINE void keep(const Sums& s, int32_t* out) {
  _mm512_storeu_si512(out, s.a);
  _mm512_storeu_si512(out + 16, s.b);
}
#else
using Whole = int16_t;
using Weight = int16_t;
constexpr int GROUP = 2, MIDDLE = 0, WIDE = 16;
#if defined(__AVX512BW__)
constexpr int TALL = 12;
struct Sums {
  __m512i v;
};
INLINE Sums zero() { return {_mm512_setzero_si512()}; }
struct Groups {
  __m512i v;
};
INLINE Groups groups(const Weight* p) { return {_mm512_loadu_si512(p)}; }
INLINE void add(Sums& s, const Groups& w, const Whole* x) {
  int32_t both;
  std::memcpy(&both, x, 4);
  s.v = _mm512_add_epi32(s.v, _mm512_madd_epi16(w.v, _mm512_set1_epi32(both)));
}
INLINE void keep(const Sums& s, int32_t* out) { _mm512_storeu_si512(out, s.v); }
#elif defined(__AVX2__)
constexpr int TALL = 6;
struct Sums {
  __m256i a, b;
};
INLINE Sums zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
struct Groups {
  __m256i a, b;
};
INLINE Groups groups(const Weight* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16))};
}
INLINE void add(Sums& s, const Groups& w, const Whole* x) {
  int32_t both;
  std::memcpy(&both, x, 4);
  __m256i all = _mm256_set1_epi32(both);
  s.a = _mm256_add_epi32(s.a, _mm256_madd_epi16(w.a, all));
  s.b = _mm256_add_epi32(s.b, _mm256_madd_epi16(w.b, all));
}
INLINE void keep(const Sums& s, int32_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), s.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), s.b);
}
#else
constexpr int TALL = 4;
struct Sums {
  int32_t v[WIDE];
};
INLINE Sums zero() { return Sums{}; }
struct Groups {
  const int16_t* v;
};
INLINE Groups groups(const Weight* p) { return {p}; }
INLINE void add(Sums& s, const Groups& w, const Whole* x) {
  for (int c = 0; c < WIDE; ++c) s.v[c] += int32_t(w.v[2 * c]) * x[0] + int32_t(w.v[2 * c + 1]) * x[1];
}
INLINE void keep(const Sums& s, int32_t* out) { std::memcpy(out, s.v, sizeof s.v); }
#endif
#endif

// A panel of the kernel [k, n]: WIDE columns from `column`, in groups of rows [k / GROUP][WIDE][GROUP]; zeros beyond k and n.
// `middle`: MIDDLE times the sum of each column.
static void pack(const int8_t* kernel, int64_t k, int64_t n, int64_t column, Weight* panel, int32_t* middle) {
  int64_t there = std::min<int64_t>(WIDE, n - column), r = 0;
#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
  __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, middles = _mm512_set1_epi8(char(MIDDLE));
  for (; there == WIDE && r + GROUP <= k; r += GROUP, panel += GROUP * WIDE) {
    for (int half = 0; half < 2; ++half) {
      const int8_t* p = kernel + r * n + column + 16 * half;
      auto row = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * n)); };
      __m128i low = _mm_unpacklo_epi8(row(0), row(1)), high = _mm_unpackhi_epi8(row(0), row(1));
      __m128i lower = _mm_unpacklo_epi8(row(2), row(3)), higher = _mm_unpackhi_epi8(row(2), row(3));
      __m512i all = _mm512_castsi128_si512(_mm_unpacklo_epi16(low, lower));
      all = _mm512_inserti32x4(all, _mm_unpackhi_epi16(low, lower), 1);
      all = _mm512_inserti32x4(all, _mm_unpacklo_epi16(high, higher), 2);
      all = _mm512_inserti32x4(all, _mm_unpackhi_epi16(high, higher), 3);
      _mm512_storeu_si512(panel + 64 * half, all);
      sums[half] = _mm512_dpbusd_epi32(sums[half], middles, all);
    }
  }
  _mm512_storeu_si512(middle, sums[0]);
  _mm512_storeu_si512(middle + 16, sums[1]);
#else
  std::fill(middle, middle + WIDE, 0);
#endif
#if defined(__AVX2__) && !(defined(__AVX512BW__) && defined(__AVX512VNNI__))
  for (; there == WIDE && r + GROUP <= k; r += GROUP, panel += GROUP * WIDE) {
    const int8_t *one = kernel + r * n + column, *two = one + n;
    __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one)), b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(two));
    __m256i low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)), high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 16), high);
  }
#endif
  for (; r < k; r += GROUP, panel += GROUP * WIDE) {
    for (int64_t c = 0; c < WIDE; ++c) {
      for (int64_t i = 0; i < GROUP; ++i) {
        panel[GROUP * c + i] = c < there && r + i < k ? kernel[(r + i) * n + column + c] : 0;
        middle[c] += MIDDLE * panel[GROUP * c + i];
      }
    }
  }
}

struct Work {
  const float *x, *scale, *bias, *offset, *inputs;
  const int8_t* kernel;
  float* y;
  int64_t m, k, n;
  bool biased, shifted;
  const int32_t* middle;  // of a kernel in panels, as `pack` makes them; null: the kernel is [k, n]
};

// The greatest magnitude of k numbers.
static float greatest(const float* x, int64_t k) {
  float most = 0;
  int64_t i = 0;
#ifdef __AVX2__
  __m256 high = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
  for (; i + 8 <= k; i += 8) high = _mm256_max_ps(high, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
  float lanes[8];
  _mm256_storeu_ps(lanes, high);
  for (float lane : lanes) most = std::max(most, lane);
#endif
  for (; i < k; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// Rounds a row to whole numbers (halves to even) and fills it up to `wide`; returns the size of a step, and their sum in `total`.
static float round_row(const Work& w, const float* x, Whole* out, int64_t wide, int32_t* total) {
  float levels = w.inputs[1], most = std::max(w.inputs[0] > 0 ? w.inputs[0] : greatest(x, w.k), 1e-30f);
  float rate = levels / most;
  int32_t sum = 0;
  int64_t i = 0;
#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
  __m512 high = _mm512_set1_ps(levels), low = _mm512_set1_ps(-levels), factor = _mm512_set1_ps(rate);
  __m512i sums = _mm512_setzero_si512(), middle = _mm512_set1_epi32(MIDDLE);
  for (; i + 16 <= w.k; i += 16) {
    __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x + i), factor);
    __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(value, low), high));
    sums = _mm512_add_epi32(sums, whole);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, middle)));
  }
  sum = _mm512_reduce_add_epi32(sums);
#elif defined(__AVX2__)
  __m256 high = _mm256_set1_ps(levels), low = _mm256_set1_ps(-levels), factor = _mm256_set1_ps(rate);
  __m256i sums = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
  auto whole = [&](const float* p) {
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(p), factor), low), high));
  };
  for (; i + 16 <= w.k; i += 16) {
    __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole(x + i), whole(x + i + 8)), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), both);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(both, ones));
  }
  int32_t lanes[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sums);
  for (int32_t lane : lanes) sum += lane;
#endif
  for (; i < w.k; ++i) {
    int32_t q = int32_t(std::nearbyintf(std::min(std::max(x[i] * rate, -levels), levels)));
    out[i] = Whole(q + MIDDLE), sum += q;
  }
  for (; i < wide; ++i) out[i] = 0;  // the panel has zeros there
  *total = sum;
  return most / levels;
}

template <int ROWS>
static void tile(const Work& w, const Whole* x, int64_t wide, const Weight* panel, const int32_t* middle, const float* steps,
                 const int32_t* totals, int64_t row, int64_t column) {
  for (int r = 0; r < ROWS; ++r)  // lines that no one has read
    for (int c = 0; c < WIDE; c += 16) __builtin_prefetch(w.y + (row + r) * w.n + column + c, 1);
  Sums sums[ROWS];  // every loop over them is unrolled: they stay in registers
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) sums[r] = zero();
  for (int64_t i = 0; i < wide; i += GROUP, panel += GROUP * WIDE) {
    Groups now = groups(panel);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) add(sums[r], now, x + r * wide + i);
  }
  int64_t there = std::min<int64_t>(WIDE, w.n - column);
  int32_t wholes[ROWS][WIDE];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) keep(sums[r], wholes[r]);
  auto write = [&](int r, int64_t count) {
    const int32_t* whole = wholes[r];
    const float *scale = w.scale + column, *offset = w.offset + column, *bias = w.bias + column;
    float* __restrict__ y = w.y + (row + r) * w.n + column;
    float step = steps[r], shift = steps[r] * float(totals[r]);
    for (int64_t c = 0; c < count; ++c) {
      float value = float(whole[c] - middle[c]) * (step * scale[c]);
      if (w.shifted) value += shift * offset[c];
      y[c] = w.biased ? value + bias[c] : value;
    }
  };
  for (int r = 0; r < ROWS; ++r) there == WIDE ? write(r, WIDE) : write(r, there);
}

typedef void (*Tile)(const Work&, const Whole*, int64_t, const Weight*, const int32_t*, const float*, const int32_t*, int64_t, int64_t);
template <int... R>
static Tile tile_of(int rows, std::integer_sequence<int, R...>) {
  static const Tile all[] = {tile<R + 1>...};
  return all[rows - 1];
}

// Rows [low, high) and columns [left, right) of the product.
static void part(const Work& w, int64_t low, int64_t high, int64_t left, int64_t right) {
  int64_t wide = (w.k + GROUP - 1) / GROUP * GROUP, rows = high - low;
  std::vector<Whole> x(rows * wide);
  std::vector<Weight> panel(wide * WIDE);
  std::vector<float> steps(rows);
  std::vector<int32_t> totals(rows);
  int32_t middle[WIDE];
  for (int64_t r = 0; r < rows; ++r) steps[r] = round_row(w, w.x + (low + r) * w.k, &x[r * wide], wide, &totals[r]);
  for (int64_t column = left; column < right; column += WIDE) {
    const Weight* columns = panel.data();
    const int32_t* middles = middle;
    if (w.middle) {
      columns = reinterpret_cast<const Weight*>(w.kernel) + column * wide, middles = w.middle + column;
    } else {
      pack(w.kernel, w.k, w.n, column, panel.data(), middle);
    }
    for (int64_t r = 0; r < rows; r += TALL) {
      int now = int(std::min<int64_t>(TALL, rows - r));
      tile_of(now, std::make_integer_sequence<int, TALL>{})(w, &x[r * wide], wide, columns, middles, &steps[r], &totals[r], low + r,
                                                            column);
    }
  }
}

using Floats = ffi::Buffer<ffi::F32>;

static ffi::Error computed(ffi::ThreadPool pool, const Work& w) {
  constexpr int64_t least = 4 * 12, most = 16 * 12;  // rows that share a panel
  int64_t threads = std::max<int64_t>(1, pool.num_threads()), each = (w.m + 2 * threads - 1) / (2 * threads);
  int64_t rows = std::min(most, std::max(least, (each + 11) / 12 * 12)), blocks = (w.m + rows - 1) / rows;
  int64_t panels = (w.n + WIDE - 1) / WIDE;
  bool small = w.m * w.k * w.n < 1 << 18;
  int64_t splits = small ? 1 : std::min(panels, blocks >= 2 * threads ? 1 : (2 * threads + blocks - 1) / blocks);
  in_turn(pool, blocks * splits, [w, splits, panels, rows](int64_t i) {
    int64_t block = i / splits, s = i % splits;
    part(w, block * rows, std::min(w.m, (block + 1) * rows), panels * s / splits * WIDE, std::min(w.n, panels * (s + 1) / splits * WIDE));
  });
  return ffi::Error::Success();
}

// The numbers of a kernel [k, n] that `pack` takes for a panel, where panels are bytes; else 0.
extern "C" int ptm_integers_columns() { return sizeof(Weight) == 1 && GROUP == 4 ? WIDE : 0; }

using Bytes = ffi::Buffer<ffi::S8>;
using Result = ffi::ResultBuffer<ffi::F32>;

static ffi::Error product(ffi::ThreadPool pool, Floats x, Bytes kernel, Floats scale, Floats inputs, Floats offset, Floats bias, Result y) {
  return computed(pool, {x.typed_data(), scale.typed_data(), bias.typed_data(), offset.typed_data(), inputs.typed_data(),
                         kernel.typed_data(), y->typed_data(), x.dimensions()[0], x.dimensions()[1], y->dimensions()[1],
                         bias.element_count() > 0, offset.element_count() > 0, nullptr});
}

static ffi::Error panels(ffi::ThreadPool pool, Floats x, Bytes kernel, ffi::Buffer<ffi::S32> middle, Floats scale, Floats inputs,
                         Floats offset, Floats bias, Result y) {
  return computed(pool, {x.typed_data(), scale.typed_data(), bias.typed_data(), offset.typed_data(), inputs.typed_data(),
                         kernel.typed_data(), y->typed_data(), x.dimensions()[0], x.dimensions()[1], y->dimensions()[1],
                         bias.element_count() > 0, offset.element_count() > 0, middle.typed_data()});
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_integers_product, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Bytes>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_integers_panels, panels,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Bytes>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
