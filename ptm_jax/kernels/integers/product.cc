// y = float32(int8 x) @ (int8 kernel) with the scales of rows and columns, on the threads of a CPU.
//
// Rows of x are rounded to whole numbers in [-levels, levels], by their own greatest magnitude or a given one. Products of 16-bit
// pairs add up in 32 bits: no sum saturates, as it does in 8-bit products with an unsigned side.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
#define INLINE static inline __attribute__((always_inline))

constexpr int WIDE = 16;  // columns of a tile
#if defined(__AVX512BW__)
constexpr int TALL = 12;  // rows of a tile
struct Sums {
  __m512i v;
};
INLINE Sums zero() { return {_mm512_setzero_si512()}; }
struct Pairs {
  __m512i v;
};
INLINE Pairs pairs(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE void add(Sums& s, const Pairs& w, const int16_t* x) {
  int32_t both;
  std::memcpy(&both, x, 4);
#if defined(__AVX512VNNI__)
  s.v = _mm512_dpwssd_epi32(s.v, w.v, _mm512_set1_epi32(both));
#else
  s.v = _mm512_add_epi32(s.v, _mm512_madd_epi16(w.v, _mm512_set1_epi32(both)));
#endif
}
INLINE void keep(const Sums& s, int32_t* out) { _mm512_storeu_si512(out, s.v); }
#elif defined(__AVX2__)
constexpr int TALL = 6;
struct Sums {
  __m256i a, b;
};
INLINE Sums zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
struct Pairs {
  __m256i a, b;
};
INLINE Pairs pairs(const int16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16))};
}
INLINE void add(Sums& s, const Pairs& w, const int16_t* x) {
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
struct Pairs {
  const int16_t* v;
};
INLINE Pairs pairs(const int16_t* p) { return {p}; }
INLINE void add(Sums& s, const Pairs& w, const int16_t* x) {
  for (int c = 0; c < WIDE; ++c) s.v[c] += int32_t(w.v[2 * c]) * x[0] + int32_t(w.v[2 * c + 1]) * x[1];
}
INLINE void keep(const Sums& s, int32_t* out) { std::memcpy(out, s.v, sizeof s.v); }
#endif

// A panel of the kernel [k, n]: WIDE columns from `column`, as 16-bit pairs of rows [k / 2][WIDE][2]; zeros beyond k and n.
static void pack(const int8_t* kernel, int64_t k, int64_t n, int64_t column, int16_t* panel) {
  int64_t there = std::min<int64_t>(WIDE, n - column);
  for (int64_t r = 0; r < k; r += 2, panel += 2 * WIDE) {
    const int8_t *one = kernel + r * n + column, *two = r + 1 < k ? one + n : nullptr;
#ifdef __AVX2__
    if (there == WIDE && two) {
      __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one)), b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(two));
      __m256i low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)), high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel), low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 16), high);
      continue;
    }
#endif
    for (int64_t c = 0; c < WIDE; ++c) {
      panel[2 * c] = c < there ? one[c] : 0;
      panel[2 * c + 1] = c < there && two ? two[c] : 0;
    }
  }
}

struct Work {
  const float *x, *scale, *bias, *offset, *inputs;
  const int8_t* kernel;
  float* y;
  int64_t m, k, n;
  bool biased, shifted;
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

// Rounds a row to whole numbers (halves to even); returns the size of a step, and their sum in `total`.
static float round_row(const Work& w, const float* x, int16_t* out, int32_t* total) {
  float levels = w.inputs[1], most = std::max(w.inputs[0] > 0 ? w.inputs[0] : greatest(x, w.k), 1e-30f);
  float rate = levels / most;
  int32_t sum = 0;
  int64_t i = 0;
#ifdef __AVX2__
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
    out[i] = int16_t(q), sum += q;
  }
  if (w.k & 1) out[w.k] = 0;
  *total = sum;
  return most / levels;
}

template <int ROWS>
static void tile(const Work& w, const int16_t* x, int64_t even, const int16_t* panel, const float* steps, const int32_t* totals,
                 int64_t row, int64_t column) {
  for (int r = 0; r < ROWS; ++r) __builtin_prefetch(w.y + (row + r) * w.n + column, 1);  // a line that no one has read
  Sums sums[ROWS];  // every loop over them is unrolled: they stay in registers
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) sums[r] = zero();
  for (int64_t i = 0; i < even; i += 2, panel += 2 * WIDE) {
    Pairs two = pairs(panel);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) add(sums[r], two, x + r * even + i);
  }
  int64_t there = std::min<int64_t>(WIDE, w.n - column);
  int32_t wholes[ROWS][WIDE];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) keep(sums[r], wholes[r]);
  for (int r = 0; r < ROWS; ++r) {
    const int32_t* whole = wholes[r];
    float* y = w.y + (row + r) * w.n + column;
    for (int64_t c = 0; c < there; ++c) {
      float value = float(whole[c]) * (steps[r] * w.scale[column + c]);
      if (w.shifted) value += (steps[r] * float(totals[r])) * w.offset[column + c];
      y[c] = w.biased ? value + w.bias[column + c] : value;
    }
  }
}

typedef void (*Tile)(const Work&, const int16_t*, int64_t, const int16_t*, const float*, const int32_t*, int64_t, int64_t);
template <int... R>
static Tile tile_of(int rows, std::integer_sequence<int, R...>) {
  static const Tile all[] = {tile<R + 1>...};
  return all[rows - 1];
}

// Rows [low, high) and columns [left, right) of the product.
static void part(const Work& w, int64_t low, int64_t high, int64_t left, int64_t right) {
  int64_t even = w.k + (w.k & 1), rows = high - low;
  std::vector<int16_t> x(rows * even), panel(even * WIDE);
  std::vector<float> steps(rows);
  std::vector<int32_t> totals(rows);
  for (int64_t r = 0; r < rows; ++r) steps[r] = round_row(w, w.x + (low + r) * w.k, &x[r * even], &totals[r]);
  for (int64_t column = left; column < right; column += WIDE) {
    pack(w.kernel, w.k, w.n, column, panel.data());
    for (int64_t r = 0; r < rows; r += TALL) {
      int now = int(std::min<int64_t>(TALL, rows - r));
      tile_of(now, std::make_integer_sequence<int, TALL>{})(w, &x[r * even], even, panel.data(), &steps[r], &totals[r], low + r,
                                                            column);
    }
  }
}

// Parts that threads take in turn. A task that starts after the last part was taken does nothing, and owns nothing of the caller's.
struct Parts {
  std::atomic<int64_t> next{0};
  int64_t count, done = 0;
  std::mutex lock;
  std::condition_variable all;
};

using Floats = ffi::Buffer<ffi::F32>;

static ffi::Error product(ffi::ThreadPool pool, Floats x, ffi::Buffer<ffi::S8> kernel, Floats scale, Floats inputs, Floats offset,
                          Floats bias, ffi::ResultBuffer<ffi::F32> y) {
  Work w{x.typed_data(),      scale.typed_data(),  bias.typed_data(),    offset.typed_data(),      inputs.typed_data(),
         kernel.typed_data(), y->typed_data(),     x.dimensions()[0],    x.dimensions()[1],        kernel.dimensions()[1],
         bias.element_count() > 0, offset.element_count() > 0};
  constexpr int64_t ROWS = 4 * 12;
  int64_t threads = std::max<int64_t>(1, pool.num_threads()), blocks = (w.m + ROWS - 1) / ROWS;
  int64_t panels = (w.n + WIDE - 1) / WIDE;
  bool small = w.m * w.k * w.n < 1 << 18;
  int64_t splits = small ? 1 : std::min(panels, blocks >= 2 * threads ? 1 : (2 * threads + blocks - 1) / blocks);
  auto parts = std::make_shared<Parts>();
  parts->count = blocks * splits;
  auto work = [parts, w, splits, panels] {
    for (int64_t i; (i = parts->next.fetch_add(1)) < parts->count;) {
      int64_t block = i / splits, s = i % splits;
      part(w, block * ROWS, std::min(w.m, (block + 1) * ROWS), panels * s / splits * WIDE, std::min(w.n, panels * (s + 1) / splits * WIDE));
      std::lock_guard<std::mutex> hold(parts->lock);
      if (++parts->done == parts->count) parts->all.notify_all();
    }
  };
  for (int64_t t = 1; t < std::min(threads, parts->count); ++t) pool.Schedule(std::decay_t<decltype(work)>(work));
  work();
  std::unique_lock<std::mutex> hold(parts->lock);
  parts->all.wait(hold, [&] { return parts->done == parts->count; });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_integers_product, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::S8>>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
