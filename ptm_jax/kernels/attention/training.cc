// softmax(scale * q k^T + bias) v over the visible keys with dropout, and its gradients, on the threads of a CPU.
//
// A part is a row and a head. For SIDE queries at a time, the scores of the span of keys that one of them may see stay in the cache.
// The forward pass keeps the logarithm of each query's sum, from which the backward pass computes the weights again, and dropout's
// bits depend on the place of a score alone (`core.streams`). Numbers are bfloat16 or float32; all sums are float32.

#include <cmath>
#include <limits>

#include "../parts.h"
#include "products.h"
#include "visible.h"

namespace ffi = xla::ffi;

constexpr int64_t SIDE = 64;  // queries, and keys of a block that is skipped
constexpr float UNSEEN = -1e30f;

struct Work : Fields {
  const void *q, *k, *v;
  const bool* allow;
  const float* bias;
  const uint32_t* seeds;  // of the rows, or null: no dropout
  int64_t rows, heads, width, allow_row, allow_head, bias_row, bias_head;  // distances are 0 where shared
  float scale, kept;      // 1 / (1 - the rate of dropout)
  uint32_t least;
};

// Memory of a thread, for the largest part that it met.
struct Room {
  std::vector<char> memory;
  size_t used = 0;
  template <typename T>
  T* take(int64_t count) {
    size_t start = used;
    used += (count * sizeof(T) + 127) / 64 * 64;
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64 + start);
  }
};

INLINE Bits mixed(Bits x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// All bits where the scores from `counter` are kept.
INLINE Ints keeps(const Work& w, int64_t row, uint32_t counter) {
  Bits places;
  for (int i = 0; i < LANES; ++i) places[i] = i;
  Bits bits = mixed(mixed((places + counter) * 0x9E3779B9u + 1) ^ w.seeds[row]);
  return bits >= Bits{} + w.least;
}

INLINE Vec chosen(Ints mask, Vec v) { return (Vec)((Ints)v & mask); }
INLINE Ints ints(const int32_t* p) {
  Ints v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
INLINE Vec power(Vec x) {  // exp(x) of x <= 0; a NaN stays one
  Vec least = all(-80.0f);
  return chosen(~(Ints)(x <= least), exponential(x < least ? least : x));
}

// What a query sees of a span, and its added scores, with zeros after them. Equal neighbours share the mask.
struct Sight {
  int32_t* seen;
  float* bias;
  int64_t last = -1;
  void look_at(const Work& w, int64_t row, int64_t head, int64_t i, Span span) {
    bool same = last == i - 1 && i && !w.allow;
    for (int64_t f = 0; same && f < w.fields; ++f) {
      const int32_t* q = w.q_fields + (row * w.fields + f) * w.queries + i;
      same = q[0] == q[-1];
    }
    if (!same) {
      const bool* allow = w.allow ? w.allow + row * w.allow_row + head * w.allow_head + i * w.keys : nullptr;
      look(w, row, i, allow, span, seen);
      std::fill(seen + span.count, seen + span.longer, 0);
    }
    last = i;
    if (!w.bias) return;
    std::memcpy(bias, w.bias + row * w.bias_row + head * w.bias_head + i * w.keys + span.first, span.count * sizeof(float));
    std::fill(bias + span.count, bias + span.longer, 0.0f);
  }
  inline __attribute__((always_inline)) Vec score(const Work& w, const float* scores, int64_t j) const {
    Vec s = load(scores + j) * all(w.scale);
    return w.bias ? s + load(bias + j) : s;
  }
};

template <typename T, typename U>
struct Part {
  using E = Number<U>;
  const Work& w;
  Room& room;
  int64_t row, head, step = w.heads * w.width, wide = whole(w.width), longest = (w.keys + LANES - 1) / LANES * LANES;
  Sight sight{};

  const T* at(const void* x, int64_t length, int64_t i) const {
    return static_cast<const T*>(x) + ((row * length + i) * w.heads + head) * w.width;
  }
  T* at(void* x, int64_t length, int64_t i) const { return const_cast<T*>(at(static_cast<const void*>(x), length, i)); }
  uint32_t counter(int64_t i, int64_t j) const { return (head * w.queries + i) * w.keys + j; }
  E* keys_of(const void* x) {
    E* all = room.take<E>(longest * wide);
    gather(at(x, w.keys, 0), step, w.keys, w.width, all, longest, wide);
    return all;
  }
  U* turned_keys(const E* x) {
    U* to = room.take<U>(longest * wide / SIZE<U>);
    turned<U>(x, longest, wide, to);
    return to;
  }
  const U* joined_keys(const E* x) { return joined(x, longest, wide, room.take<U>(longest * wide / SIZE<U>)); }
  void begin() {
    sight.seen = room.take<int32_t>(longest);
    sight.bias = room.take<float>(longest);
  }
  static void put(const float* from, int64_t width, float rate, T* to) {
    across(width, [&](int64_t d) { write(to + d, load(from + d) * all(rate)); },
           [&](int64_t d, int64_t n) { write_some(to + d, read_some(from + d, n) * all(rate), n); });
  }

  // Makes the weights of query i from its scores; returns the factor of their sum of values.
  float weigh(float* scores, int64_t i, Span span, E* weights, float* total) {
    sight.look_at(w, row, head, i, span);
    Vec high = all(-std::numeric_limits<float>::max());
    for (int64_t j = 0; j < span.longer; j += LANES) {
      Vec s = ints(sight.seen + j) ? sight.score(w, scores, j) : all(UNSEEN);
      store(scores + j, s);
      high = s > high ? s : high;
    }
    float top = UNSEEN;
    for (int n = 0; n < LANES && span.longer; ++n) top = n ? std::max(top, high[n]) : high[n];
    Vec sums = Vec{};
    for (int64_t j = 0; j < span.longer; j += LANES) {
      Vec p = chosen(ints(sight.seen + j), power(load(scores + j) - all(top)));
      sums += p;
      write(weights + j, w.seeds ? chosen(keeps(w, row, counter(i, span.first + j)), p) : p);
    }
    float least = std::max(sum(sums), 1e-30f);  // nothing is seen: all weights are 0
    *total = top + std::log(least);
    return w.kept / least;
  }

  void forward(const std::vector<Span>& spans, void* y, float* totals) {
    const E *k = keys_of(w.k), *v = keys_of(w.v);
    const U *k_turned = turned_keys(k), *v_joined = joined_keys(v);
    E *q = room.take<E>(SIDE * wide), *weights = room.take<E>(SIDE * longest);
    float *scores = room.take<float>(SIDE * longest), *sums = room.take<float>(SIDE * wide), rates[SIDE];
    begin();
    for (int64_t i = 0; i < w.queries; i += SIDE) {
      Span span = spans[i / SIDE];
      int64_t m = std::min(SIDE, w.queries - i);
      gather(at(w.q, w.queries, i), step, m, w.width, q, m, wide);
      matrices(m, span.longer, wide / SIZE<U>, reinterpret_cast<U*>(q), wide / SIZE<U>, 1, k_turned + span.first, longest, scores,
               span.longer);
      sight.last = -1;
      for (int64_t r = 0; r < m; ++r)
        rates[r] = weigh(scores + r * span.longer, i + r, span, weights + r * span.longer, totals + (row * w.heads + head) * w.queries + i + r);
      matrices(m, wide, span.longer / SIZE<U>, reinterpret_cast<U*>(weights), span.longer / SIZE<U>, 1,
               v_joined + span.first / SIZE<U> * wide, wide, sums, wide);
      for (int64_t r = 0; r < m; ++r) put(sums + r * wide, w.width, rates[r], at(y, w.queries, i + r));
    }
  }

  // Makes the weights after dropout of query i, and the gradients of its scores from those of its weights.
  void pull(const float* scores, const float* of_weights, int64_t i, Span span, E* weights, E* of_scores, float total, float inner,
            float* of_bias) {
    sight.look_at(w, row, head, i, span);
    for (int64_t j = 0; j < span.longer; j += LANES) {
      Vec p = chosen(ints(sight.seen + j), power(sight.score(w, scores, j) - all(total)));
      Vec left = w.seeds ? chosen(keeps(w, row, counter(i, span.first + j)), p * all(w.kept)) : p;
      Vec ds = left * load(of_weights + j) - p * all(inner);
      write(weights + j, left);
      write(of_scores + j, ds * all(w.scale));
      if (of_bias && j + LANES <= span.count) store(of_bias + j, ds);
      if (of_bias && j + LANES > span.count) write_some(of_bias + j, ds, span.count - j);
    }
  }

  void backward(const std::vector<Span>& spans, const void* y, const float* totals, const void* g, void* const made[3], float* of_bias) {
    const E *k = keys_of(w.k), *v = keys_of(w.v);
    const U *k_turned = turned_keys(k), *v_turned = turned_keys(v), *k_joined = joined_keys(k);
    E *q = room.take<E>(SIDE * wide), *above = room.take<E>(SIDE * wide), *weights = room.take<E>(SIDE * longest),
      *of_scores = room.take<E>(SIDE * longest);
    U *pairs = room.take<U>(SIDE * longest / SIZE<U>), *of_queries = room.take<U>(SIDE * wide / SIZE<U>);
    float *scores = room.take<float>(SIDE * longest), *of_weights = room.take<float>(SIDE * longest),
          *dq = room.take<float>(SIDE * wide), *dk = room.take<float>(longest * wide), *dv = room.take<float>(longest * wide);
    begin();
    std::fill(dk, dk + longest * wide, 0.0f), std::fill(dv, dv + longest * wide, 0.0f);
    for (int64_t i = 0; i < w.queries; i += SIDE) {
      Span span = spans[i / SIDE];
      int64_t m = std::min(SIDE, w.queries - i), even = (m + 1) / 2 * 2, longer = span.longer, units = longer / SIZE<U>;
      gather(at(w.q, w.queries, i), step, m, w.width, q, even, wide);
      gather(at(g, w.queries, i), step, m, w.width, above, even, wide);
      auto over_features = [&](const E* a, const U* b, float* c) {
        matrices(m, longer, wide / SIZE<U>, reinterpret_cast<const U*>(a), wide / SIZE<U>, 1, b + span.first, longest, c, longer);
      };
      over_features(q, k_turned, scores), over_features(above, v_turned, of_weights);
      sight.last = -1;
      for (int64_t r = 0; r < m; ++r) {
        Vec inner = Vec{};
        const T *one = at(y, w.queries, i + r), *other = at(g, w.queries, i + r);
        across(w.width, [&](int64_t d) { inner += read(one + d) * read(other + d); },
               [&](int64_t d, int64_t n) { inner += read_some(one + d, n) * read_some(other + d, n); });
        int64_t place = (row * w.heads + head) * w.queries + i + r;
        pull(scores + r * longer, of_weights + r * longer, i + r, span, weights + r * longer, of_scores + r * longer, totals[place],
             sum(inner), of_bias ? of_bias + place * w.keys + span.first : nullptr);
      }
      for (E* last : {weights, of_scores}) std::memset(last + m * longer, 0, (even - m) * longer * sizeof(E));
      matrices(m, wide, units, reinterpret_cast<const U*>(of_scores), units, 1, k_joined + span.first / SIZE<U> * wide, wide, dq, wide);
      for (int64_t r = 0; r < m; ++r) put(dq + r * wide, w.width, 1.0f, at(made[0], w.queries, i + r));
      auto over_queries = [&](const E* a, const E* b, float* c) {
        matrices<true>(longer, wide, even / SIZE<U>, joined(a, even, longer, pairs), 1, longer, joined(b, even, wide, of_queries), wide,
                       c + span.first * wide, wide);
      };
      over_queries(of_scores, q, dk), over_queries(weights, above, dv);
    }
    for (int64_t j = 0; j < w.keys; ++j) {
      put(dk + j * wide, w.width, 1.0f, at(made[1], w.keys, j));
      put(dv + j * wide, w.width, 1.0f, at(made[2], w.keys, j));
    }
  }
};

// Runs `run(part, spans of its row)` for each row and head.
template <typename T, typename Run>
static void each_part(ffi::ThreadPool pool, const Work& w, const Run& run) {
  using U = std::conditional_t<std::is_same_v<T, Brain>, OfBrain, float>;
  std::vector<std::vector<Span>> spans;
  for (int64_t row = 0; row < w.rows; ++row) spans.push_back(spans_of(w, row, SIDE, LANES));
  int64_t length = w.keys + SIDE, wide = whole(w.width) + LANES;
  size_t bytes = 4096 + 4 * (8 * length * wide + 6 * SIDE * (length + wide) + 4 * length);
  in_turn(pool, w.rows * w.heads, [w, &spans, &run, bytes](int64_t n) {
    static thread_local Room room;
    if (room.memory.size() < bytes) room.memory.resize(bytes);
    room.used = 0;
    Part<T, U> part{w, room, n / w.heads, n % w.heads};
    run(part, spans[n / w.heads]);
  });
}

using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using Permissions = ffi::Buffer<ffi::PRED>;
using Seeds = ffi::Buffer<ffi::U32>;
using Any = ffi::AnyBuffer;

static Work work_of(Any q, Any k, Any v, Integers q_fields, Integers k_fields, Permissions allow, Floats bias, Seeds seeds,
                    float scale, float rate, int64_t least, ffi::Span<const int32_t> kinds) {
  auto d = q.dimensions();
  int64_t keys = k.dimensions()[1], scores = d[1] * keys;
  auto of_rows = [&](auto size) { return size.size() == 4 && size[0] > 1 ? size[1] * scores : int64_t{0}; };
  auto of_heads = [&](auto size) { return size.size() == 4 && size[1] > 1 ? scores : int64_t{0}; };
  Fields fields{q_fields.typed_data(), k_fields.typed_data(), kinds.begin(), d[1], keys, q_fields.dimensions()[1]};
  return Work{fields,
              q.untyped_data(),
              k.untyped_data(),
              v.untyped_data(),
              allow.dimensions().size() == 4 ? allow.typed_data() : nullptr,
              bias.dimensions().size() == 4 ? bias.typed_data() : nullptr,
              seeds.element_count() ? seeds.typed_data() : nullptr,
              d[0],
              d[2],
              d[3],
              of_rows(allow.dimensions()),
              of_heads(allow.dimensions()),
              of_rows(bias.dimensions()),
              of_heads(bias.dimensions()),
              scale,
              1.0f / (1.0f - rate),
              uint32_t(least)};
}

static ffi::Error forward(ffi::ThreadPool pool, Any q, Any k, Any v, Integers q_fields, Integers k_fields, Permissions allow,
                          Floats bias, Seeds seeds, ffi::Result<Any> y, ffi::Result<Floats> totals, float scale, float rate,
                          int64_t least, ffi::Span<const int32_t> kinds) {
  Work w = work_of(q, k, v, q_fields, k_fields, allow, bias, seeds, scale, rate, least, kinds);
  return by_type(q.element_type(), [&](auto number) {
    each_part<decltype(number)>(pool, w, [&](auto& part, auto& spans) { part.forward(spans, y->untyped_data(), totals->typed_data()); });
    return ffi::Error::Success();
  });
}

static ffi::Error backward(ffi::ThreadPool pool, Any q, Any k, Any v, Integers q_fields, Integers k_fields, Permissions allow,
                           Floats bias, Seeds seeds, Any y, Floats totals, Any g, ffi::Result<Any> dq, ffi::Result<Any> dk,
                           ffi::Result<Any> dv, ffi::Result<Floats> of_bias, float scale, float rate, int64_t least,
                           ffi::Span<const int32_t> kinds) {
  Work w = work_of(q, k, v, q_fields, k_fields, allow, bias, seeds, scale, rate, least, kinds);
  void* const made[3] = {dq->untyped_data(), dk->untyped_data(), dv->untyped_data()};
  float* added = w.bias ? of_bias->typed_data() : nullptr;
  if (added) std::fill(added, added + of_bias->element_count(), 0.0f);
  return by_type(q.element_type(), [&](auto number) {
    each_part<decltype(number)>(pool, w, [&](auto& part, auto& spans) {
      part.backward(spans, y.untyped_data(), totals.typed_data(), g.untyped_data(), made, added);
    });
    return ffi::Error::Success();
  });
}

static auto common() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Integers>().Arg<Integers>().Arg<Permissions>()
      .Arg<Floats>().Arg<Seeds>();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_attention_forward, forward,
                              common().Ret<Any>().Ret<Floats>().Attr<float>("scale").Attr<float>("rate").Attr<int64_t>("least")
                                  .Attr<ffi::Span<const int32_t>>("kinds"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_attention_backward, backward,
                              common().Arg<Any>().Arg<Floats>().Arg<Any>().Ret<Any>().Ret<Any>().Ret<Any>().Ret<Floats>()
                                  .Attr<float>("scale").Attr<float>("rate").Attr<int64_t>("least")
                                  .Attr<ffi::Span<const int32_t>>("kinds"));
