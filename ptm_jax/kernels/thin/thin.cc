// y [m, n] = x [m, k] W for few rows x, on the threads of a CPU: each number of W is read once, at the rate of the memory.
//
// A row's result does not depend on the other rows, nor on the number of threads: its sums run over k in one order.

#include "../parts.h"
#include "../types.h"

namespace ffi = xla::ffi;

constexpr int DEEP = 8;           // rows of W that are added to a sum while it is in a register
constexpr int64_t STRIP = 512;    // columns of a part at most: its sums stay in the first cache
constexpr int64_t ROWS = 64;      // of a transposed W, in a part
constexpr int64_t SMALL = 1 << 15;  // products that one thread computes

struct Shape {
  int64_t m, k, n;
};

// Columns [left, right) of y, W [k, n].
template <typename T>
static void strip(const Shape& s, const float* x, const T* w, float* y, int64_t left, int64_t right) {
  int64_t width = whole(right - left);
  std::vector<float> room(s.m * width);
  auto add = [&](int64_t p, int64_t count, int64_t d, auto at) {
    Vec columns[DEEP];
    for (int64_t j = 0; j < count; ++j) columns[j] = at(w + (p + j) * s.n + left + d);
    for (int64_t i = 0; i < s.m; ++i) {
      float* to = room.data() + i * width + d;
      Vec sums = load(to);
      const float* factors = x + i * s.k + p;
      for (int64_t j = 0; j < count; ++j) sums += all(factors[j]) * columns[j];
      store(to, sums);
    }
  };
  auto sweep = [&](int64_t p, auto count) {
    across(right - left, [&](int64_t d) { add(p, count, d, [](const T* from) { return read(from); }); },
           [&](int64_t d, int64_t some) { add(p, count, d, [some](const T* from) { return read_some(from, some); }); });
  };
  int64_t p = 0;
  for (; p + DEEP <= s.k; p += DEEP) {
    for (int j = 0; j < DEEP && p + DEEP + j < s.k; ++j)  // the next rows lie in other pages
      for (int64_t d = left; d < right; d += 64 / sizeof(T)) __builtin_prefetch(w + (p + DEEP + j) * s.n + d);
    sweep(p, std::integral_constant<int64_t, DEEP>{});
  }
  for (; p < s.k; ++p) sweep(p, std::integral_constant<int64_t, 1>{});
  for (int64_t i = 0; i < s.m; ++i) std::memcpy(y + i * s.n + left, room.data() + i * width, (right - left) * sizeof(float));
}

// Columns [first, first + count) of M rows of y, count <= 4; W [n, k].
template <int M, typename T>
INLINE void dot_rows(const Shape& s, const float* x, const T* w, float* y, int64_t first, int64_t count) {
  Vec sums[M][4] = {};
  const T* rows[4];
  for (int j = 0; j < 4; ++j) rows[j] = w + (first + std::min<int64_t>(j, count - 1)) * s.k;
  auto add = [&](int64_t d, auto at, auto from) {
    Vec columns[4];
    for (int j = 0; j < 4; ++j) columns[j] = at(rows[j] + d);
    for (int i = 0; i < M; ++i) {
      Vec row = from(x + i * s.k + d);
      for (int j = 0; j < 4; ++j) sums[i][j] += row * columns[j];
    }
  };
  across(s.k, [&](int64_t d) { add(d, [](const T* p) { return read(p); }, [](const float* p) { return read(p); }); },
         [&](int64_t d, int64_t some) {
           add(d, [some](const T* p) { return read_some(p, some); }, [some](const float* p) { return read_some(p, some); });
         });
  for (int i = 0; i < M; ++i) {
    Quad four = totals(sums[i]);
    std::memcpy(y + i * s.n + first, &four, count * sizeof(float));
  }
}

#ifdef __AVX512BF16__
// The same by products of pairs of bfloat16 numbers.
template <int M>
INLINE void dot_rows(const Shape& s, const Brain* x, const Brain* w, float* y, int64_t first, int64_t count) {
  __m512 sums[M][4];
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < 4; ++j) sums[i][j] = _mm512_setzero_ps();
  const Brain* rows[4];
  for (int j = 0; j < 4; ++j) rows[j] = w + (first + std::min<int64_t>(j, count - 1)) * s.k;
  for (int64_t d = 0; d < s.k; d += 32) {
    __mmask32 there = s.k - d < 32 ? (1u << (s.k - d)) - 1 : ~0u;
    __m512bh columns[4];
    for (int j = 0; j < 4; ++j) columns[j] = (__m512bh)_mm512_maskz_loadu_epi16(there, rows[j] + d);
    for (int i = 0; i < M; ++i) {
      __m512bh row = (__m512bh)_mm512_maskz_loadu_epi16(there, x + i * s.k + d);
      for (int j = 0; j < 4; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], row, columns[j]);
    }
  }
  for (int i = 0; i < M; ++i) {
    Quad four = totals(reinterpret_cast<const Vec*>(sums[i]));
    std::memcpy(y + i * s.n + first, &four, count * sizeof(float));
  }
}
#endif

// Columns [left, right) of y, W [n, k].
template <typename X, typename T>
static void dots_of(const Shape& s, const X* x, const T* w, float* y, int64_t left, int64_t right) {
  for (int64_t first = left; first < right; first += 4) {
    int64_t count = std::min<int64_t>(4, right - first), i = 0;
    for (; i + 4 <= s.m; i += 4) dot_rows<4>(s, x + i * s.k, w, y + i * s.n, first, count);
    for (; i < s.m; ++i) dot_rows<1>(s, x + i * s.k, w, y + i * s.n, first, count);
  }
}

static ffi::Error thin_product(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::ResultBuffer<ffi::F32> y, bool transposed) {
  Shape s{x.dimensions()[0], x.dimensions()[1], y->dimensions()[1]};
  return by_type(x.element_type(), [&](auto number) {
    using T = decltype(number);
    const T *rows = static_cast<const T*>(x.untyped_data()), *w = static_cast<const T*>(kernel.untyped_data());
    float* out = y->typed_data();
    std::vector<float> wide;
    const float* in;
    if constexpr (sizeof(T) == sizeof(float)) {
      in = rows;
    } else {
      wide.resize(s.m * s.k);
      across(s.m * s.k, [&](int64_t d) { store(wide.data() + d, read(rows + d)); },
             [&](int64_t d, int64_t n) { write_some(wide.data() + d, read_some(rows + d, n), n); });
      in = wide.data();
    }
    int64_t threads = std::max<int64_t>(1, pool.num_threads()), each = ROWS;
    if (!transposed) each = std::min(STRIP, std::max<int64_t>(64, (s.n / (4 * threads) + 63) / 64 * 64));
    if (s.k * s.n < SMALL) each = s.n;
    in_turn(pool, (s.n + each - 1) / each, [=](int64_t i) {
      int64_t left = i * each, right = std::min(s.n, left + each);
      if (!transposed) return strip(s, in, w, out, left, right);
#ifdef __AVX512BF16__
      dots_of(s, rows, w, out, left, right);
#else
      dots_of(s, in, w, out, left, right);
#endif
    });
    return ffi::Error::Success();
  });
}

constexpr int64_t PANEL = 32;  // columns of a panel

// The same for more rows: W lies in panels [k, PANEL] of its columns, the last one with zeros.
static ffi::Error panel_product(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> panels, ffi::ResultBuffer<ffi::F32> y) {
  int64_t m = x.dimensions()[0], k = x.dimensions()[1], n = y->dimensions()[1], count = panels.dimensions()[0];
  int64_t threads = std::max<int64_t>(1, pool.num_threads()), each = std::max<int64_t>(1, count / (4 * threads));
  if (k * n < SMALL) each = count;
  const float *rows = x.typed_data(), *w = panels.typed_data();
  float* out = y->typed_data();
  in_turn(pool, (count + each - 1) / each, [=](int64_t i) {
    for (int64_t j = i * each; j < std::min(count, (i + 1) * each); ++j) {
      int64_t left = j * PANEL, some = std::min(PANEL, n - left), blocks = (m + TALL - 1) / TALL;
      std::vector<float> room(some < PANEL ? m * PANEL : 0);
      float* to = some < PANEL ? room.data() : out + left;
      int64_t step = some < PANEL ? PANEL : n;
      const float *panel = w + left * k, *next = w + std::min(j + 1, count - 1) * PANEL * k;
      for (int64_t b = 0; b < blocks; ++b) {  // the next panel arrives meanwhile
        for (int64_t p = k * b / blocks; p < k * (b + 1) / blocks; ++p)
          for (int64_t d = 0; d < PANEL; d += 16) __builtin_prefetch(next + p * PANEL + d);
        int64_t first = m * b / blocks, last = m * (b + 1) / blocks;
        product(last - first, PANEL, k, rows + first * k, k, 1, panel, PANEL, to + first * step, step);
      }
      for (int64_t r = 0; some < PANEL && r < m; ++r) std::memcpy(out + r * n + left, to + r * PANEL, some * sizeof(float));
    }
  });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_thin_product, thin_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<bool>("transposed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_panel_product, panel_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
