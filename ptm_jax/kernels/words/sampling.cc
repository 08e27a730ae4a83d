// Skip-gram with negative sampling: several SGD updates in place, on the threads of a CPU.
//
// The definition is objectives/windows.py (NegativeSampling) under SGD. Of an update, every row's gradients are computed from
// the same tables, in parallel; then each thread adds them, in the order of rows, to its own columns. Results therefore do not
// depend on the number of threads.

#include <sched.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

typedef float Vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(32), aligned(4), may_alias));

static inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
static inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
static inline Vec all(float x) { return Vec{x, x, x, x, x, x, x, x}; }

// exp of x in [-80, 0], to 2e-7.
static inline Vec exponential(Vec x) {
  Vec t = x * all(1.44269504f);
  Vec whole = (t + all(12582912.0f)) - all(12582912.0f);
  Vec f = (t - whole) * all(0.69314718f);
  Vec p = all(1.0f / 720);
  p = p * f + all(1.0f / 120);
  p = p * f + all(1.0f / 24);
  p = p * f + all(1.0f / 6);
  p = p * f + all(0.5f);
  p = p * f + all(1.0f);
  p = p * f + all(1.0f);
  Ints n = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Vec scale;
  std::memcpy(&scale, &n, sizeof(scale));
  return p * scale;
}

// Returns sigmoid(s); `grown` is 1 + exp(-|s|), so that softplus(s) = max(s, 0) + log(grown).
static inline Vec sigmoid(Vec s, Vec* grown) {
  Vec size = s < all(0.0f) ? s : -s;
  Vec e = exponential(size < all(-80.0f) ? all(-80.0f) : size);
  *grown = all(1.0f) + e;
  return (s < all(0.0f) ? e : all(1.0f)) / *grown;
}

// C [M, 16] (ldc) = A(i, p) B [k, 16] (ldb), A(i, p) = a[i * ra + p * ca].
template <int M>
static inline void tile(int k, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
  Vec sums[M][2];
  for (int i = 0; i < M; ++i) sums[i][0] = sums[i][1] = all(0.0f);
  for (int p = 0; p < k; ++p) {
    Vec left = load(b + p * ldb), right = load(b + p * ldb + 8);
    for (int i = 0; i < M; ++i) {
      Vec x = all(a[i * ra + p * ca]);
      sums[i][0] += x * left;
      sums[i][1] += x * right;
    }
  }
  for (int i = 0; i < M; ++i) {
    store(c + i * ldc, sums[i][0]);
    store(c + i * ldc + 8, sums[i][1]);
  }
}

// C [m, n] = A B; n is a multiple of 16.
static void product(int m, int n, int k, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
  for (int j = 0; j < n; j += 16) {
    int i = 0;
    for (; i + 6 <= m; i += 6) tile<6>(k, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc);
    for (; i < m; ++i) tile<1>(k, a + i * ra, ra, ca, b + j, ldb, c + i * ldc + j, ldc);
  }
}

struct Sizes {
  int length, noise, width, padded, window;
  float share;
};

static inline int ceil16(int n) { return (n + 15) / 16 * 16; }

// The gradients of a row: of its centres' input vectors, of its words' and of its noise words' output vectors.
struct Row {
  std::vector<float> x, y, z, turned, gx, gy, gz, g, weights;
  std::vector<int32_t> places;  // of the centres
  double loss = 0;
  int64_t pairs = 0;

  explicit Row(const Sizes& s) {
    int n = ceil16(s.noise);
    for (auto* v : {&x, &y, &gx, &gy}) v->assign(size_t(s.length) * s.padded, 0);
    for (auto* v : {&z, &gz, &turned}) v->assign(size_t(n) * s.padded, 0);
    for (auto* v : {&g, &weights}) v->assign(size_t(s.length) * n, 0);
    places.reserve(s.length);
  }

  void compute(const Sizes& s, const float* in, const float* out, const int32_t* ids, const int32_t* segments,
               const int32_t* windows, const int32_t* noise) {
    const int width = s.width, padded = s.padded, columns = ceil16(s.noise);
    auto near = [&](int t, int u) { return u != t && u >= 0 && u < s.length && segments[u] == segments[t]; };
    places.clear();
    loss = 0;
    pairs = 0;
    std::fill(gy.begin(), gy.end(), 0.0f);
    for (int t = 0; t < s.length; ++t) {
      if (segments[t] <= 0) continue;
      std::memcpy(&y[size_t(t) * padded], out + size_t(ids[t]) * width, width * sizeof(float));
      int found = 0;
      for (int u = t - windows[t]; u <= t + windows[t]; ++u) found += near(t, u);
      if (!found) continue;
      size_t c = places.size();
      std::memcpy(&x[c * padded], in + size_t(ids[t]) * width, width * sizeof(float));
      for (int m = 0; m < columns; ++m) weights[c * columns + m] = m < s.noise ? float(found) : 0.0f;
      places.push_back(t);
      pairs += found;
    }
    for (int m = 0; m < s.noise; ++m) {
      const float* row = out + size_t(noise[m]) * width;
      std::memcpy(&z[size_t(m) * padded], row, width * sizeof(float));
      for (int d = 0; d < width; ++d) turned[size_t(d) * columns + m] = row[d];
    }
    int centres = places.size();
    for (int u = 0; u < s.length && centres; ++u) {  // a noise word that is the predicted word does not count
      bool any = false;
      for (int m = 0; m < s.noise; ++m) any |= noise[m] == ids[u];
      if (!any || segments[u] <= 0) continue;
      for (int c = 0; c < centres; ++c) {
        int t = places[c];
        if (std::abs(t - u) > windows[t] || !near(t, u)) continue;
        for (int m = 0; m < s.noise; ++m) weights[size_t(c) * columns + m] -= float(noise[m] == ids[u]);
      }
    }
    product(centres, columns, width, x.data(), padded, 1, turned.data(), columns, g.data(), columns);
    for (int c = 0; c < centres; ++c) against(s, columns, c);
    product(centres, padded, s.noise, g.data(), columns, 1, z.data(), padded, gx.data(), padded);
    product(s.noise, padded, centres, g.data(), 1, columns, x.data(), padded, gz.data(), padded);
    for (int c = 0; c < centres; ++c) towards(s, c, near, windows);
  }

  // Turns the scores of a centre's noise words into gradients.
  void against(const Sizes& s, int columns, int c) {
    float* scores = &g[size_t(c) * columns];
    const float* counts = &weights[size_t(c) * columns];
    Vec total = all(0.0f), grown, product = all(1.0f), shared = all(counts[0]);
    bool same = true;
    for (int m = 0; m < s.noise; ++m) same = same && counts[m] == counts[0];
    for (int m = 0; m < columns; m += 8) {
      Vec score = load(scores + m), count = load(counts + m);
      Vec right = sigmoid(score, &grown);
      store(scores + m, all(s.share) * count * right);
      total += count * (score > all(0.0f) ? score : all(0.0f));
      if (same && m + 8 <= s.noise) {
        product *= grown;
        if (m % 64 == 56) log(&total, shared, &product);
      } else {
        for (int i = 0; i < 8; ++i) total[i] += count[i] * std::log(grown[i]);
      }
    }
    log(&total, shared, &product);
    for (int i = 0; i < 8; ++i) loss += double(s.share) * total[i];
  }

  // Adds the logarithm of a product of at most 64 numbers in [1, 2].
  static void log(Vec* total, Vec count, Vec* product) {
    Vec p = *product;
    (*total)[0] += count[0] * std::log(((p[0] * p[1]) * (p[2] * p[3])) * ((p[4] * p[5]) * (p[6] * p[7])));
    *product = all(1.0f);
  }

  // Adds the gradients of a centre's neighbours.
  template <class Near>
  void towards(const Sizes& s, int c, const Near& near, const int32_t* windows) {
    int t = places[c], found = 0, padded = s.padded;
    float scores[128];
    int32_t words[128];
    const float* state = &x[size_t(c) * padded];
    for (int u = t - windows[t]; u <= t + windows[t]; ++u) {
      if (!near(t, u)) continue;
      const float* word = &y[size_t(u) * padded];
      Vec one = all(0.0f), two = all(0.0f);
      for (int d = 0; d < padded; d += 16) {
        one += load(state + d) * load(word + d);
        two += load(state + d + 8) * load(word + d + 8);
      }
      one += two;
      words[found] = u;
      scores[found++] = -((one[0] + one[1]) + (one[2] + one[3]) + ((one[4] + one[5]) + (one[6] + one[7])));
    }
    for (int n = found; n % 8; ++n) scores[n] = -80.0f;
    Vec product = all(1.0f), grown;
    double total = 0;
    for (int n = 0; n < found; n += 8) {
      Vec score = load(scores + n);
      for (int i = n; i < found && i < n + 8; ++i) total += scores[i] > 0 ? scores[i] : 0.0f;
      store(scores + n, -sigmoid(score, &grown));
      product *= grown;
    }
    float whole = 1;
    for (int i = 0; i < 8; ++i) whole *= product[i];
    loss += total + std::log(whole);
    float* slope = &gx[size_t(c) * padded];
    for (int d = 0; d < padded; d += 16) {
      Vec one = load(slope + d), two = load(slope + d + 8), left = load(state + d), right = load(state + d + 8);
      for (int n = 0; n < found; ++n) {
        size_t at = size_t(words[n]) * padded + d;
        Vec factor = all(scores[n]);
        one += factor * load(&y[at]);
        two += factor * load(&y[at + 8]);
        store(&gy[at], load(&gy[at]) + factor * left);
        store(&gy[at + 8], load(&gy[at + 8]) + factor * right);
      }
      store(slope + d, one);
      store(slope + d + 8, two);
    }
  }

  // Adds columns [low, high) of the gradients to the tables.
  void add(const Sizes& s, float rate, float* in, float* out, const int32_t* ids, const int32_t* segments,
           const int32_t* noise, int low, int high) const {
    auto one = [&](float* table, int32_t id, const float* slope) {
      float* to = table + size_t(id) * s.width;
      for (int d = low; d < high; ++d) to[d] -= rate * slope[d];
    };
    for (size_t c = 0; c < places.size(); ++c) one(in, ids[places[c]], &gx[c * s.padded]);
    if (places.empty()) return;
    for (int t = 0; t < s.length; ++t) {
      if (segments[t] > 0) one(out, ids[t], &gy[size_t(t) * s.padded]);
    }
    for (int m = 0; m < s.noise; ++m) one(out, noise[m], &gz[size_t(m) * s.padded]);
  }
};

// Waits for all threads.
struct Barrier {
  int count;
  std::atomic<int> waiting{0}, round{0};
  explicit Barrier(int n) : count(n) {}
  void wait() {
    int mine = round.load();
    if (waiting.fetch_add(1) + 1 == count) {
      waiting.store(0);
      round.fetch_add(1);
      return;
    }
    for (int spins = 0; round.load(std::memory_order_acquire) == mine; ++spins) {
      if (spins > 2000) sched_yield();
    }
  }
};

static int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

using Floats = ffi::Buffer<ffi::F32>;
using Words = ffi::Buffer<ffi::S32>;

// sums = [loss, centres, pairs] of all updates. Update m has the rows m, m + updates, ...
static ffi::Error descend(Floats in0, Floats out0, Words ids, Words segments, Words windows, Words noise, Floats rate,
                          ffi::Result<Floats> in1, ffi::Result<Floats> out1, ffi::Result<Floats> sums, int64_t updates,
                          int64_t window, float k, int64_t threads) {
  auto dims = ids.dimensions();
  int rows = dims[0], length = dims[1], width = in0.dimensions()[1], drawn = noise.dimensions()[1];
  float *in = in1->typed_data(), *out = out1->typed_data();
  if (in != in0.typed_data()) std::memcpy(in, in0.typed_data(), in0.size_bytes());
  if (out != out0.typed_data()) std::memcpy(out, out0.typed_data(), out0.size_bytes());
  Sizes s{length, drawn, width, ceil16(width), int(window), k / drawn};
  if (2 * window > 128) return ffi::Error::InvalidArgument("windows have at most 64 words on each side");
  int each = rows / updates, team = std::max<int>(1, std::min<int>(threads > 0 ? threads : cores(), each));
  std::vector<Row> row(each, Row(s));
  double loss = 0, centres = 0, pairs = 0;
  std::vector<std::atomic<int>> next(updates);
  Barrier barrier(team);
  auto work = [&](int me) {
    int low = s.padded / 16 * me / team * 16, high = me + 1 == team ? width : s.padded / 16 * (me + 1) / team * 16;
    for (int m = 0; m < updates; ++m) {
      auto at = [&](const Words& field, int r, int size) { return field.typed_data() + size_t(m + r * updates) * size; };
      for (int r = next[m]++; r < each; r = next[m]++) {  // a core may be shared with the stream of batches
        row[r].compute(s, in, out, at(ids, r, length), at(segments, r, length), at(windows, r, length), at(noise, r, drawn));
      }
      barrier.wait();
      size_t there = 0;
      for (int r = 0; r < each; ++r) there += row[r].places.size();
      float step = there ? rate.typed_data()[0] / float(there) : 0.0f;
      for (int r = 0; r < each; ++r) {
        row[r].add(s, step, in, out, at(ids, r, length), at(segments, r, length), at(noise, r, drawn), low, high);
        if (!me) loss += row[r].loss, pairs += double(row[r].pairs);
      }
      if (!me) centres += double(there);
      barrier.wait();
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < team; ++i) others.emplace_back(work, i);
  work(0);
  for (auto& thread : others) thread.join();
  float* found = sums->typed_data();
  found[0] = float(loss), found[1] = float(centres), found[2] = float(pairs);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_words_descend, descend,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("updates")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("k")
                                  .Attr<int64_t>("threads"));
