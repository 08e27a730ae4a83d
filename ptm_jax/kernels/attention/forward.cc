// softmax(scale * q k^T + bias) v over the visible keys, in float32, on the threads of a CPU.
//
// A part is a row and a head: keys are transposed and values are copied into arrays that stay in the cache. For TALL queries at a
// time, their scores, the exponentials and the sums of values stay in registers or in the first cache. Queries of a group of SIDE
// multiply the span of blocks of SIDE keys that one of them may see, by the extremes of the fields: a window of w costs O(L w).

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../parts.h"
#include "visible.h"

namespace ffi = xla::ffi;

#ifdef __AVX512F__
constexpr int LANES = 16;  // numbers of a vector: a register, since g++ moves the parts of a longer one to memory and back
#else
constexpr int LANES = 8;
#endif
constexpr int TALL = 4, WIDE = 2;  // queries, vectors of a tile
constexpr int SIDE = 32;           // queries or keys of a block; whole vectors and whole tiles
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Wholes __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE Vector load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
INLINE void store(float* p, const Vector& v) { std::memcpy(p, &v, sizeof v); }
INLINE Vector all(float x) { return Vector{} + x; }

// 2^x of x in [-126, 0], as 2^n * 2^f with |f| <= 1/2 and Taylor's polynomial of degree 7; the relative error is below 3e-7.
INLINE Vector power_of_two(Vector x) {
  const Vector magic = all(12582912.0f);  // 1.5 * 2^23: the sum's last bits are the nearest whole number
  Vector sum = x + magic, f = x - (sum - magic);
  Vector p = all(1.5252734e-5f);
  for (float c : {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f}) p = p * f + c;
  Wholes bits;
  std::memcpy(&bits, &sum, sizeof bits);
  Wholes n = (bits - 0x4B400000) << 23, value;
  std::memcpy(&value, &p, sizeof value);
  value += n;
  std::memcpy(&p, &value, sizeof p);
  return p;
}

struct Work : Fields {
  const float *q, *k, *v, *bias;
  const bool* allow;
  float* y;
  int64_t heads, width;
  int64_t allow_row, allow_head, bias_row, bias_head;  // distances in memory, 0 where shared
  float scale;
};

// out [ROWS, columns] = a [ROWS, inner] b [inner, columns]; `columns` are whole vectors, `*_row` distances of rows in memory.
template <int ROWS>
INLINE void multiply(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t inner, int64_t columns, float* out,
                     int64_t out_row) {
  int64_t c = 0;
  for (; c + WIDE * LANES <= columns; c += WIDE * LANES) {
    Vector sums[ROWS][WIDE] = {};
    for (int64_t i = 0; i < inner; ++i) {
      Vector row[WIDE];
      for (int w = 0; w < WIDE; ++w) row[w] = load(b + i * b_row + c + w * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        Vector x = all(a[r * a_row + i]);
#pragma GCC unroll 2
        for (int w = 0; w < WIDE; ++w) sums[r][w] += x * row[w];
      }
    }
    for (int r = 0; r < ROWS; ++r)
      for (int w = 0; w < WIDE; ++w) store(out + r * out_row + c + w * LANES, sums[r][w]);
  }
  for (; c < columns; c += LANES) {
    Vector sums[ROWS] = {};
    for (int64_t i = 0; i < inner; ++i) {
      Vector row = load(b + i * b_row + c);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sums[r] += all(a[r * a_row + i]) * row;
    }
    for (int r = 0; r < ROWS; ++r) store(out + r * out_row + c, sums[r]);
  }
}

// Makes weights of the scores of a query; returns 1 / their sum, 0 where nothing is visible.
static float weigh(const Work& w, float* scores, const int32_t* seen, const float* bias, Span span) {
  constexpr float UNSEEN = -1e30f, LOG2E = 1.44269504f;
  int64_t longer = span.longer;
  for (int64_t j = 0; j < span.count; ++j) {
    float score = scores[j] * w.scale + (bias ? bias[j] : 0.0f);
    scores[j] = seen[j] ? score : UNSEEN;
  }
  for (int64_t j = span.count; j < longer; ++j) scores[j] = UNSEEN;
  Vector high = all(UNSEEN);
  for (int64_t j = 0; j < longer; j += LANES) {
    Vector s = load(scores + j);
    high = s > high ? s : high;
  }
  float top = UNSEEN;
  for (int i = 0; i < LANES; ++i) top = std::max(top, high[i]);
  if (top <= UNSEEN) {
    std::fill(scores, scores + longer, 0.0f);
    return 0.0f;
  }
  Vector sums = {}, least = all(-126.0f), zero = {};
  for (int64_t j = 0; j < longer; j += LANES) {
    Vector x = (load(scores + j) - top) * LOG2E;
    Vector p = power_of_two(x > least ? x : least);
    p = x > least ? p : zero;
    sums += p;
    store(scores + j, p);
  }
  float sum = 0;
  for (int i = 0; i < LANES; ++i) sum += sums[i];
  return 1 / sum;
}

// Arrays of a part in the cache: keys [width, longer], values [keys, wider], and scores, sums and the mask of a tile.
struct Room {
  float *keys, *values, *scores, *sums;
  int32_t* seen;
  int64_t longer, wider;
};

// The results of ROWS queries of a part, from query i.
template <int ROWS>
static void tile(const Work& w, const Room& room, int64_t row, int64_t head, int64_t i, Span span) {
  int64_t step = w.heads * w.width, place = ((row * w.queries + i) * w.heads + head) * w.width;
  multiply<ROWS>(w.q + place, step, room.keys + span.first, room.longer, w.width, span.longer, room.scores, span.longer);
  float rates[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    const bool* allow = w.allow ? w.allow + row * w.allow_row + head * w.allow_head + (i + r) * w.keys : nullptr;
    const float* bias = w.bias ? w.bias + row * w.bias_row + head * w.bias_head + (i + r) * w.keys + span.first : nullptr;
    look(w, row, i + r, allow, span, room.seen);
    rates[r] = weigh(w, room.scores + r * span.longer, room.seen, bias, span);
  }
  const float* values = room.values + span.first * room.wider;
  multiply<ROWS>(room.scores, span.longer, values, room.wider, span.count, room.wider, room.sums, room.wider);
  for (int r = 0; r < ROWS; ++r)
    for (int64_t d = 0; d < w.width; ++d) w.y[place + r * step + d] = room.sums[r * room.wider + d] * rates[r];
}

static void part(const Work& w, const std::vector<Span>& spans, int64_t row, int64_t head) {
  int64_t longer = (w.keys + SIDE - 1) / SIDE * SIDE, wider = (w.width + LANES - 1) / LANES * LANES, step = w.heads * w.width;
  static thread_local std::vector<float> floats;
  static thread_local std::vector<int32_t> seen;
  floats.resize(w.width * longer + w.keys * wider + TALL * (longer + wider));
  seen.resize(longer);
  float* values = floats.data() + w.width * longer;
  Room room{floats.data(), values, values + w.keys * wider, values + w.keys * wider + TALL * longer, seen.data(), longer, wider};
  const float *k = w.k + (row * w.keys * w.heads + head) * w.width, *v = w.v + (row * w.keys * w.heads + head) * w.width;
  for (int64_t j = 0; j < longer; ++j)
    for (int64_t d = 0; d < w.width; ++d) room.keys[d * longer + j] = j < w.keys ? k[j * step + d] : 0;
  for (int64_t j = 0; j < w.keys; ++j) {
    std::memcpy(values + j * wider, v + j * step, sizeof(float) * w.width);
    std::fill(values + j * wider + w.width, values + (j + 1) * wider, 0.0f);
  }
  for (int64_t i = 0; i < w.queries;) {
    Span span = spans[i / SIDE];
    bool tall = i + TALL <= w.queries;
    tall ? tile<TALL>(w, room, row, head, i, span) : tile<1>(w, room, row, head, i, span);
    i += tall ? TALL : 1;
  }
}

using Floats = ffi::Buffer<ffi::F32>;

using Integers = ffi::Buffer<ffi::S32>;

static ffi::Error attention(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Integers q_fields, Integers k_fields,
                            ffi::Buffer<ffi::PRED> allow, Floats bias, ffi::ResultBuffer<ffi::F32> y, float scale,
                            ffi::Span<const int32_t> kinds) {
  auto d = q.dimensions();
  int64_t rows = d[0], queries = d[1], heads = d[2], width = d[3], keys = k.dimensions()[1], scores = queries * keys;
  auto of_rows = [&](auto size) { return size.size() == 4 && size[0] > 1 ? size[1] * scores : int64_t{0}; };
  auto of_heads = [&](auto size) { return size.size() == 4 && size[1] > 1 ? scores : int64_t{0}; };
  bool biased = bias.dimensions().size() == 4, masked = allow.dimensions().size() == 4;
  Fields fields{q_fields.typed_data(), k_fields.typed_data(), kinds.begin(), queries, keys, q_fields.dimensions()[1]};
  Work w{fields, q.typed_data(), k.typed_data(), v.typed_data(), biased ? bias.typed_data() : nullptr,
         masked ? allow.typed_data() : nullptr, y->typed_data(), heads, width, of_rows(allow.dimensions()),
         of_heads(allow.dimensions()), of_rows(bias.dimensions()), of_heads(bias.dimensions()), scale};
  std::vector<std::vector<Span>> spans;
  for (int64_t row = 0; row < rows; ++row) spans.push_back(spans_of(w, row, SIDE, LANES));
  int64_t threads = std::max<int64_t>(1, pool.num_threads()), all = rows * heads;
  int64_t each = std::max<int64_t>(1, all / (4 * threads)), least = 1 + (1 << 18) / std::max<int64_t>(1, 4 * scores * width);
  each = std::min(all, std::max(each, least));
  in_turn(pool, (all + each - 1) / each, [w, &spans, all, each](int64_t i) {
    for (int64_t n = i * each; n < std::min(all, (i + 1) * each); ++n) part(w, spans[n / w.heads], n / w.heads, n % w.heads);
  });
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_attention, attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Integers>()
                                  .Arg<Integers>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<float>("scale")
                                  .Attr<ffi::Span<const int32_t>>("kinds"));
