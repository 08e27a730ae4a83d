// Softmax statistics of scores that lie in memory, and their gradient: each score is read once from memory in either direction.

#include "../parts.h"
#include "../types.h"

#include <cmath>

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Words = ffi::Buffer<ffi::S32>;

constexpr int64_t TOKENS = 16;  // of a part; the order of the sums of a bias depends on nothing else

INLINE Vec exp_below(Vec x) {
  const Vec least = all(-80.0f);
  return exponential(x < least ? least : x);
}

// z = row + bias, in chunks: body(z, first word), and tail(z, first word, words) at the end.
template <typename Body>
INLINE void each(const float* row, const float* bias, int64_t words, const Body& body) {
  across(words, [&](int64_t v) { body(bias ? load(row + v) + load(bias + v) : load(row + v), v, int64_t{LANES}); },
         [&](int64_t v, int64_t n) {
           Vec z = read_some(row + v, n);
           body(bias ? z + read_some(bias + v, n) : z, v, n);
         });
}

// made [4, tokens] = log sum exp z, z of the label, the greatest z, the sum of z.
static ffi::Error statistics(ffi::ThreadPool pool, Floats scores, Floats bias, Words labels, ffi::Result<Floats> made) {
  int64_t tokens = scores.dimensions()[0], words = scores.dimensions()[1];
  const float *z = scores.typed_data(), *b = bias.element_count() ? bias.typed_data() : nullptr;
  const int32_t* label = labels.typed_data();
  float* out = made->typed_data();
  in_turn(pool, (tokens + TOKENS - 1) / TOKENS, [=](int64_t i) {
    for (int64_t t = i * TOKENS; t < std::min(tokens, (i + 1) * TOKENS); ++t) {
      const float* row = z + t * words;
      Vec tops = all(-INFINITY), sums = Vec{}, totals = Vec{};
      each(row, b, words, [&](Vec v, int64_t, int64_t n) {
        sums += v;
        for (int64_t k = n; k < LANES; ++k) v[k] = -INFINITY;
        tops = v > tops ? v : tops;
      });
      float top = tops[0];
      for (int k = 1; k < LANES; ++k) top = std::max(top, tops[k]);
      each(row, b, words, [&](Vec v, int64_t, int64_t n) {
        Vec e = exp_below(v - all(top));
        for (int64_t k = n; k < LANES; ++k) e[k] = 0;
        totals += e;
      });
      bool known = label[t] >= 0 && label[t] < words;
      out[t] = top + std::log(sum(totals));
      out[tokens + t] = known ? row[label[t]] + (b ? b[label[t]] : 0) : 0;
      out[2 * tokens + t] = top;
      out[3 * tokens + t] = sum(sums);
    }
  });
  return ffi::Error::Success();
}

// dz = g[0] exp(z - log_sum) + g[1] [v = label] + g[2], g [3, tokens]; `of_bias` is its sum over the tokens.
static ffi::Error gradient(ffi::ThreadPool pool, Floats scores, Floats bias, Words labels, Floats log_sums, Floats g,
                           ffi::Result<Floats> made, ffi::Result<Floats> of_bias) {
  int64_t tokens = scores.dimensions()[0], words = scores.dimensions()[1], parts = (tokens + TOKENS - 1) / TOKENS;
  const float *z = scores.typed_data(), *b = bias.element_count() ? bias.typed_data() : nullptr;
  const float *log_sum = log_sums.typed_data(), *above = g.typed_data();
  const int32_t* label = labels.typed_data();
  float* dz = made->typed_data();
  // Parts are summed in groups, so that the room does not grow with the tokens.
  int64_t groups = std::min<int64_t>(parts, 64), padded = whole(words);
  std::vector<float> room(b ? groups * padded : 0);
  float* totals = room.data();
  in_turn(pool, groups, [=](int64_t group) {
    float* total = b ? totals + group * padded : nullptr;
    for (int64_t t = parts * group / groups * TOKENS; t < std::min(tokens, parts * (group + 1) / groups * TOKENS); ++t) {
      const float* row = z + t * words;
      float* to = dz + t * words;
      Vec rate = all(above[t]), level = all(above[2 * tokens + t]), end = all(log_sum[t]);
      each(row, b, words, [&](Vec v, int64_t d, int64_t n) {
        Vec slope = rate * exp_below(v - end) + level;
        if (n == LANES) {
          store(to + d, slope);
          if (total) store(total + d, load(total + d) + slope);
        } else {
          for (int64_t k = 0; k < n; ++k) to[d + k] = slope[k], total ? total[d + k] += slope[k] : 0;
        }
      });
      if (label[t] >= 0 && label[t] < words) {
        to[label[t]] += above[tokens + t];
        if (total) total[label[t]] += above[tokens + t];
      }
    }
  });
  if (b) {
    float* sums = of_bias->typed_data();
    in_turn(pool, (words + 4095) / 4096, [=](int64_t i) {
      for (int64_t v = i * 4096; v < std::min(words, (i + 1) * 4096); ++v) {
        float one = 0;
        for (int64_t group = 0; group < groups; ++group) one += totals[group * padded + v];
        sums[v] = one;
      }
    });
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_softmax_statistics, statistics,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Arg<Words>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_softmax_gradient, gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());
