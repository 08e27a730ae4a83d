// Activations and LayerNorm with their gradients: each array is read or written once, on the threads of a CPU.
//
// A number's result does not depend on its place: an incomplete vector at the end of a row is computed as a complete one.

#include "../parts.h"
#include "../types.h"

namespace ffi = xla::ffi;

constexpr int64_t NUMBERS = 1 << 15;  // of a part: it stays in the second cache
constexpr int64_t ROWS = 32;          // of a part of a norm's gradient: the order of the sums depends on nothing else
enum Kind { GELU, SIGMOID };          // `FORMULAS` of __init__.py

// x Phi(x), or x sigmoid(rate (x + cube x^3)).
struct Activation {
  int32_t kind;
  float rate, cube;
};

// Returns the share of x that an activation keeps (Phi or the sigmoid), and x times its derivative.
template <int KIND>
INLINE Vec share(Vec x, const Activation& a, Vec* slope) {
  const Vec zero = Vec{}, one = all(1.0f), least = all(-80.0f), far = all(1e6f);
  x = x < far ? x : far, x = x > -far ? x : -far;  // powers of x are finite
  if constexpr (KIND == GELU) {
    // Phi(-|x|) = exp(-x^2 / 2) P(1 / (1 + 0.3 |x|)): P is fitted to erfc, to a relative error of 3e-7 for |x| < 12.6.
    Vec size = x < zero ? -x : x, power = all(-0.5f) * x * x, t = one / (one + all(0.3f) * size);
    Vec e = exponential(power < least ? least : power), p = all(3.82392172e-02f);
    for (float c : {-1.68488273e-01f, 2.27255450e-01f, -7.48941897e-02f, 1.41417245e-01f, 9.51622039e-02f, 1.21797161e-01f,
                    1.19505074e-01f, 6.14031212e-06f})
      p = p * t + all(c);
    e = power < least ? zero : e;
    *slope = all(0.398942280f) * e * x;
    return x < zero ? p * e : one - p * e;
  }
  Vec square = x * x, s = all(a.rate) * x * (one + all(a.cube) * square), low = s < zero ? s : -s;
  Vec e = exponential(low < least ? least : low);
  e = low < least ? zero : e;
  Vec rate = one / (one + e);
  *slope = e * rate * rate * all(a.rate) * x * (one + all(3 * a.cube) * square);
  return s < zero ? e * rate : rate;
}

// y = activation(x); with a gradient g of the result: y = g activation'(x).
template <int KIND, typename T>
static void activate(const Activation& a, const T* x, const T* g, T* y, int64_t count) {
  auto at = [&](Vec v, Vec above, bool back) {
    Vec slope, kept = share<KIND>(v, a, &slope);
    return back ? above * (kept + slope) : v * kept;
  };
  if (g)
    across(count, [&](int64_t d) { write(y + d, at(read(x + d), read(g + d), true)); },
           [&](int64_t d, int64_t n) { write_some(y + d, at(read_some(x + d, n), read_some(g + d, n), true), n); });
  else
    across(count, [&](int64_t d) { write(y + d, at(read(x + d), Vec{}, false)); },
           [&](int64_t d, int64_t n) { write_some(y + d, at(read_some(x + d, n), Vec{}, false), n); });
}

static ffi::Error activation(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer g, ffi::Result<ffi::AnyBuffer> y, int32_t kind,
                             float rate, float cube) {
  Activation a{kind, rate, cube};
  int64_t count = x.element_count();
  bool back = g.element_count() == count && count;
  return by_type(x.element_type(), [&](auto number) {
    using T = decltype(number);
    const T *in = static_cast<const T*>(x.untyped_data()), *above = back ? static_cast<const T*>(g.untyped_data()) : nullptr;
    T* out = static_cast<T*>(y->untyped_data());
    in_turn(pool, (count + NUMBERS - 1) / NUMBERS, [=](int64_t i) {
      int64_t first = i * NUMBERS, some = std::min(NUMBERS, count - first);
      auto run = a.kind == GELU ? activate<GELU, T> : activate<SIGMOID, T>;
      run(a, in + first, above ? above + first : nullptr, out + first, some);
    });
    return ffi::Error::Success();
  });
}

// A row as float32 in `to` [whole(width)], and the mean and 1 / sqrt(variance + eps) of its numbers.
template <typename T>
static void measure(const T* x, int64_t width, float eps, float* to, float* mean, float* rate) {
  Vec sums = Vec{}, squares = Vec{};
  across(width, [&](int64_t d) { Vec v = read(x + d); store(to + d, v), sums += v; },
         [&](int64_t d, int64_t n) { Vec v = read_some(x + d, n); store(to + d, v), sums += v; });
  *mean = sum(sums) / width;
  int64_t d = 0;
  for (; d + LANES <= width; d += LANES) {
    Vec v = load(to + d) - all(*mean);
    squares += v * v;
  }
  float total = sum(squares);
  for (; d < width; ++d) total += (to[d] - *mean) * (to[d] - *mean);
  *rate = 1.0f / __builtin_sqrtf(total / width + eps);
}

template <typename T>
static void norm_rows(const T* x, const float* scale, const float* bias, T* y, int64_t rows, int64_t width, float eps) {
  std::vector<float> row(whole(width));
  for (int64_t i = 0; i < rows; ++i, x += width, y += width) {
    float mean, rate;
    measure(x, width, eps, row.data(), &mean, &rate);
    auto at = [&](int64_t d, Vec by, Vec add) { return (load(row.data() + d) - all(mean)) * all(rate) * by + add; };
    across(width, [&](int64_t d) { write(y + d, at(d, load(scale + d), bias ? load(bias + d) : Vec{})); },
           [&](int64_t d, int64_t n) {
             write_some(y + d, at(d, read_some(scale + d, n), bias ? read_some(bias + d, n) : Vec{}), n);
           });
  }
}

static ffi::Error norm(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> scale, ffi::Buffer<ffi::F32> bias,
                       ffi::Result<ffi::AnyBuffer> y, float eps) {
  int64_t width = scale.element_count(), rows = width ? x.element_count() / width : 0;
  int64_t each = std::max<int64_t>(1, NUMBERS / std::max<int64_t>(1, width));
  const float *by = scale.typed_data(), *add = bias.element_count() ? bias.typed_data() : nullptr;
  return by_type(x.element_type(), [&](auto number) {
    using T = decltype(number);
    const T* in = static_cast<const T*>(x.untyped_data());
    T* out = static_cast<T*>(y->untyped_data());
    in_turn(pool, (rows + each - 1) / each, [=](int64_t i) {
      int64_t first = i * each;
      norm_rows(in + first * width, by, add, out + first * width, std::min(each, rows - first), width, eps);
    });
    return ffi::Error::Success();
  });
}

// The gradient of x, and the sums over some rows of g x' and g, x' the normed x: sums [2, width].
template <typename T>
static void norm_back(const T* x, const float* scale, const T* g, T* dx, float* sums, int64_t rows, int64_t width, float eps) {
  int64_t padded = whole(width);
  std::vector<float> room(5 * padded);
  float *row = room.data(), *inner = row + padded, *by = inner + padded, *of_scale = by + padded, *of_bias = of_scale + padded;
  std::memcpy(by, scale, width * sizeof(float));
  for (int64_t i = 0; i < rows; ++i, x += width, g += width, dx += width) {
    float mean, rate;
    measure(x, width, eps, row, &mean, &rate);
    Vec total = Vec{}, along = Vec{};
    auto gather = [&](int64_t d, Vec above) {
      Vec unit = (load(row + d) - all(mean)) * all(rate), v = above * load(by + d);
      store(row + d, unit), store(inner + d, v);
      total += v, along += v * unit;
      store(of_scale + d, load(of_scale + d) + above * unit), store(of_bias + d, load(of_bias + d) + above);
    };
    across(width, [&](int64_t d) { gather(d, read(g + d)); }, [&](int64_t d, int64_t n) { gather(d, read_some(g + d, n)); });
    Vec level = all(sum(total) / width), tilt = all(sum(along) / width);
    auto at = [&](int64_t d) { return all(rate) * (load(inner + d) - level - load(row + d) * tilt); };
    across(width, [&](int64_t d) { write(dx + d, at(d)); }, [&](int64_t d, int64_t n) { write_some(dx + d, at(d), n); });
  }
  std::memcpy(sums, of_scale, width * sizeof(float)), std::memcpy(sums + width, of_bias, width * sizeof(float));
}

static ffi::Error norm_gradient(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> scale, ffi::AnyBuffer g,
                                ffi::Result<ffi::AnyBuffer> dx, ffi::ResultBuffer<ffi::F32> sums, float eps) {
  int64_t width = scale.element_count(), rows = width ? x.element_count() / width : 0, parts = (rows + ROWS - 1) / ROWS;
  const float* by = scale.typed_data();
  std::vector<float> some(parts * 2 * width);
  float *of_parts = some.data(), *made = sums->typed_data();
  auto error = by_type(x.element_type(), [&](auto number) {
    using T = decltype(number);
    const T *in = static_cast<const T*>(x.untyped_data()), *above = static_cast<const T*>(g.untyped_data());
    T* out = static_cast<T*>(dx->untyped_data());
    in_turn(pool, parts, [=](int64_t i) {
      int64_t first = i * ROWS, at = first * width;
      norm_back(in + at, by, above + at, out + at, of_parts + i * 2 * width, std::min(ROWS, rows - first), width, eps);
    });
    return ffi::Error::Success();
  });
  std::fill(made, made + 2 * width, 0.0f);
  for (int64_t i = 0; i < parts; ++i)
    for (int64_t d = 0; d < 2 * width; ++d) made[d] += of_parts[i * 2 * width + d];
  return error;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_activation, activation,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int32_t>("kind")
                                  .Attr<float>("rate")
                                  .Attr<float>("cube"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_norm, norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<float>("eps"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_norm_gradient, norm_gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("eps"));
