// New moments of Adam, with two sums of each tensor or with the new parameters, in one pass over gradient, parameter and moments.

#include "../parts.h"
#include "../types.h"
#include "factored.h"

namespace ffi = xla::ffi;

constexpr int64_t NUMBERS = 1 << 15;         // of a part: the order of the sums depends on nothing else
enum Kind { DIRECTION, SHARE };              // `KINDS` of __init__.py
enum Scalars { SCALE, ROOT, SECOND, COUNT };  // 1 / (1 - b1^t), (1 - b2^t)^-1/2, 1 - b2^t

struct Adam {
  int32_t kind;
  float b1, rest1, b2, rest2, eps, decay;
  float scale, root, second;
};

struct Arrays {
  const float *g, *param, *mu, *nu;
  float *new_mu, *new_nu;
};

struct Sums {
  double first = 0, second = 0;
};

// LAMB: sums of param^2 and direction^2. StableAdamW: the sum of g^2 / max(nu', eps^2), nu' the corrected moment.
template <int KIND>
static Sums part(const Adam& a, const Arrays& x, int64_t from, int64_t count) {
  const Vec least = all(a.eps * a.eps), second = all(a.second);
  Sums total;
  Vec first = Vec{}, other = Vec{};
  auto at = [&](Vec g, Vec p, Vec& mu, Vec& nu) {
    mu = all(a.b1) * mu + all(a.rest1) * g;
    nu = all(a.b2) * nu + all(a.rest2) * (g * g);
    if constexpr (KIND == DIRECTION) {
      Vec way = all(a.scale) * mu / (root(nu) * all(a.root) + all(a.eps)) + all(a.decay) * p;
      first += p * p, other += way * way;
    } else {
      Vec size = nu / second;
      first += g * g / (size > least ? size : least);
    }
  };
  int64_t d = from, end = from + count;
  for (; d + LANES <= end; d += LANES) {
    Vec mu = load(x.mu + d), nu = load(x.nu + d);
    at(load(x.g + d), load(x.param + d), mu, nu);
    store(x.new_mu + d, mu), store(x.new_nu + d, nu);
    if ((d - from) % (LANES << 6) == 0) {  // short sums of float, long ones of double
      total.first += sum(first), total.second += sum(other);
      first = Vec{}, other = Vec{};
    }
  }
  if (int64_t n = end - d; n > 0) {  // zeros at the end add nothing
    Vec mu = read_some(x.mu + d, n), nu = read_some(x.nu + d, n);
    at(read_some(x.g + d, n), read_some(x.param + d, n), mu, nu);
    write_some(x.new_mu + d, mu, n), write_some(x.new_nu + d, nu, n);
  }
  total.first += sum(first), total.second += sum(other);
  return total;
}

static ffi::Error moments(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> g, ffi::Buffer<ffi::F32> param, ffi::Buffer<ffi::F32> mu,
                          ffi::Buffer<ffi::F32> nu, ffi::Buffer<ffi::F32> scalars, ffi::ResultBuffer<ffi::F32> new_mu,
                          ffi::ResultBuffer<ffi::F32> new_nu, ffi::ResultBuffer<ffi::F32> sums, float b1, float rest1, float b2,
                          float rest2, float eps, float decay, int32_t kind) {
  const float* s = scalars.typed_data();
  if (scalars.element_count() != COUNT) return ffi::Error::InvalidArgument("expected three scalars");
  Adam a{kind, b1, rest1, b2, rest2, eps, decay, s[SCALE], s[ROOT], s[SECOND]};
  Arrays x{g.typed_data(), param.typed_data(), mu.typed_data(), nu.typed_data(), new_mu->typed_data(), new_nu->typed_data()};
  int64_t tensors = sums->element_count() / 2, size = g.element_count() / tensors, parts = (size + NUMBERS - 1) / NUMBERS;
  std::vector<Sums> some(tensors * parts);
  Sums* made = some.data();
  in_turn(pool, tensors * parts, [=](int64_t i) {
    int64_t first = i % parts * NUMBERS;
    auto run = a.kind == DIRECTION ? part<DIRECTION> : part<SHARE>;
    made[i] = run(a, x, i / parts * size + first, std::min(NUMBERS, size - first));
  });
  float* out = sums->typed_data();
  for (int64_t n = 0; n < tensors; ++n) {
    Sums total;
    for (int64_t i = n * parts; i < (n + 1) * parts; ++i) total.first += made[i].first, total.second += made[i].second;
    out[2 * n] = total.first, out[2 * n + 1] = total.second;
  }
  return ffi::Error::Success();
}

enum Rates { RATE = COUNT, FACTOR, ALL };  // of the step, and of the gradient where it is clipped

// AdamW: param' = param - rate (mu' / (sqrt(nu') + eps) + decay param) with corrected moments.
static void place(const Adam& a, float rate, float factor, const Arrays& x, float* new_param, int64_t count) {
  auto at = [&](Vec g, Vec p, Vec& mu, Vec& nu) {
    g = g * all(factor);
    mu = all(a.b1) * mu + all(a.rest1) * g;
    nu = all(a.b2) * nu + all(a.rest2) * (g * g);
    return p - all(rate) * (all(a.scale) * mu / (root(nu) * all(a.root) + all(a.eps)) + all(a.decay) * p);
  };
  across(count,
         [&](int64_t d) {
           Vec mu = load(x.mu + d), nu = load(x.nu + d), p = at(load(x.g + d), load(x.param + d), mu, nu);
           store(new_param + d, p), store(x.new_mu + d, mu), store(x.new_nu + d, nu);
         },
         [&](int64_t d, int64_t n) {
           Vec mu = read_some(x.mu + d, n), nu = read_some(x.nu + d, n);
           Vec p = at(read_some(x.g + d, n), read_some(x.param + d, n), mu, nu);
           write_some(new_param + d, p, n), write_some(x.new_mu + d, mu, n), write_some(x.new_nu + d, nu, n);
         });
}

static ffi::Error adamw(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> g, ffi::Buffer<ffi::F32> param, ffi::Buffer<ffi::F32> mu,
                        ffi::Buffer<ffi::F32> nu, ffi::Buffer<ffi::F32> scalars, ffi::ResultBuffer<ffi::F32> new_param,
                        ffi::ResultBuffer<ffi::F32> new_mu, ffi::ResultBuffer<ffi::F32> new_nu, float b1, float rest1, float b2,
                        float rest2, float eps, float decay) {
  const float* s = scalars.typed_data();
  if (scalars.element_count() != ALL) return ffi::Error::InvalidArgument("expected five scalars");
  Adam a{0, b1, rest1, b2, rest2, eps, decay, s[SCALE], s[ROOT], s[SECOND]};
  Arrays x{g.typed_data(), param.typed_data(), mu.typed_data(), nu.typed_data(), new_mu->typed_data(), new_nu->typed_data()};
  float rate = s[RATE], factor = s[FACTOR], *out = new_param->typed_data();
  int64_t count = g.element_count();
  in_turn(pool, (count + NUMBERS - 1) / NUMBERS, [=](int64_t i) {
    int64_t d = i * NUMBERS;
    Arrays some{x.g + d, x.param + d, x.mu + d, x.nu + d, x.new_mu + d, x.new_nu + d};
    place(a, rate, factor, some, out + d, std::min(NUMBERS, count - d));
  });
  return ffi::Error::Success();
}

// Gradient, parameter, moments and scalars; three results; the settings of Adam.
static auto bound() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Ret<ffi::Buffer<ffi::F32>>()
      .Ret<ffi::Buffer<ffi::F32>>()
      .Ret<ffi::Buffer<ffi::F32>>()
      .Attr<float>("b1")
      .Attr<float>("rest1")
      .Attr<float>("b2")
      .Attr<float>("rest2")
      .Attr<float>("eps")
      .Attr<float>("decay");
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_adamw, adamw, bound());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_moments, moments, bound().Attr<int32_t>("kind"));
