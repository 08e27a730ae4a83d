// GloVe: several AdaGrad updates in place, on the threads of a CPU.
//
// The definition is objectives/glove.py (GloVe) under Adagrad(scaled=True). All gradients of an update are of the
// parameters before it. A thread updates the words whose number is its own modulo the threads, in the order of cells, so
// results do not depend on the number of threads.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

typedef float Vec __attribute__((vector_size(32), aligned(4), may_alias));

static inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
static inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
static inline Vec all(float x) { return Vec{x, x, x, x, x, x, x, x}; }

static inline Vec root(Vec v) {
#ifdef __AVX__
  return (Vec)_mm256_sqrt_ps((__m256)v);
#else
  Vec r;
  for (int i = 0; i < 8; ++i) r[i] = __builtin_sqrtf(v[i]);
  return r;
#endif
}

static float dot(const float* a, const float* b, int width) {
  Vec one = all(0.0f), two = all(0.0f);
  int d = 0;
  for (; d + 16 <= width; d += 16) {
    one += load(a + d) * load(b + d);
    two += load(a + d + 8) * load(b + d + 8);
  }
  one += two;
  float total = ((one[0] + one[1]) + (one[2] + one[3])) + ((one[4] + one[5]) + (one[6] + one[7]));
  for (; d < width; ++d) total += a[d] * b[d];
  return total;
}

// value -= step / sqrt(sum); sum += step ** 2, step = scale * slope.
static void descend_row(float* value, float* sum, const float* slope, float scale, int width) {
  int d = 0;
  for (; d + 8 <= width; d += 8) {
    Vec step = all(scale) * load(slope + d), before = load(sum + d);
    store(value + d, load(value + d) - step / root(before));
    store(sum + d, before + step * step);
  }
  for (; d < width; ++d) {
    float step = scale * slope[d], before = sum[d];
    value[d] -= step / __builtin_sqrtf(before);
    sum[d] = before + step * step;
  }
}

static void prefetch(const float* row, int width) {
  for (int d = 0; d < width; d += 16) __builtin_prefetch(row + d, 1);
}

// The cells of an update by their words: chains in the order of cells, of the words that belong to a thread.
struct Chains {
  std::vector<int32_t> slot, next, last, heads;
  int mask;

  explicit Chains(int cells) : next(cells), last(cells) {
    int size = 4;
    while (size < 2 * cells) size *= 2;
    slot.assign(size, -1);
    mask = size - 1;
    heads.reserve(cells);
  }

  void build(const std::vector<int32_t>& ids, int me, int team) {
    for (int32_t& s : slot) s = -1;
    heads.clear();
    for (int k = 0; k < int(ids.size()); ++k) {
      if (ids[k] % team != me) continue;
      int at = find(ids, ids[k]);
      next[k] = -1;
      if (slot[at] < 0) {
        slot[at] = last[k] = k;
        heads.push_back(k);
      } else {
        next[last[slot[at]]] = k;
        last[slot[at]] = k;
      }
    }
  }

  int find(const std::vector<int32_t>& ids, int32_t id) const {
    int at = (uint32_t(id) * 2654435769u >> 7) & mask;
    while (slot[at] >= 0 && ids[slot[at]] != id) at = (at + 1) & mask;
    return at;
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
using Made = ffi::Result<Floats>;

static float* taken(const Floats& given, Made& made) {
  if (made->typed_data() != given.typed_data()) std::memcpy(made->typed_data(), given.typed_data(), given.size_bytes());
  return made->typed_data();
}

// Of cells (i, j) with logarithms and shares f(X) [B, L] (share 0: no cell), sums = [loss, cells]. Update m has the rows m,
// m + updates, ... The rates are of the mean over its cells: of w, b, v, c.
static ffi::Error cells(Floats w0, Floats b0, Floats v0, Floats c0, Floats sw0, Floats sb0, Floats sv0, Floats sc0, Words i,
                        Words j, Floats logs, Floats shares, Floats rates, Made w1, Made b1, Made v1, Made c1, Made sw1,
                        Made sb1, Made sv1, Made sc1, Made sums, int64_t updates, int64_t threads) {
  int rows = i.dimensions()[0], length = i.dimensions()[1], width = w0.dimensions()[1], each = rows / updates;
  float *w = taken(w0, w1), *b = taken(b0, b1), *v = taken(v0, v1), *c = taken(c0, c1);
  float *sw = taken(sw0, sw1), *sb = taken(sb0, sb1), *sv = taken(sv0, sv1), *sc = taken(sc0, sc1);
  int team = std::max<int>(1, threads > 0 ? threads : cores()), most = each * length;
  std::vector<int32_t> first(most), second(most);
  std::vector<float> log(most), share(most), slope(most), old(size_t(most) * width);
  Barrier barrier(team);
  double loss = 0, count = 0;
  auto work = [&](int me) {
    Chains chains(most);
    std::vector<float> total(width);
    for (int m = 0; m < updates; ++m) {
      if (!me) {
        first.clear(), second.clear();
        for (int r = 0; r < each; ++r) {
          size_t at = size_t(m + r * updates) * length;
          for (int t = 0; t < length; ++t) {
            if (shares.typed_data()[at + t] <= 0) continue;
            int k = first.size();
            first.push_back(i.typed_data()[at + t]);
            second.push_back(j.typed_data()[at + t]);
            log[k] = logs.typed_data()[at + t];
            share[k] = shares.typed_data()[at + t];
          }
        }
      }
      barrier.wait();
      int n = first.size(), low = int64_t(n) * me / team, high = int64_t(n) * (me + 1) / team;
      for (int k = low; k < high; ++k) {
        if (k + 4 < high) {
          prefetch(w + size_t(first[k + 4]) * width, width);
          prefetch(v + size_t(second[k + 4]) * width, width);
        }
        const float* row = w + size_t(first[k]) * width;
        std::memcpy(&old[size_t(k) * width], row, width * sizeof(float));
        slope[k] = dot(row, v + size_t(second[k]) * width, width) + b[first[k]] + c[second[k]] - log[k];
      }
      barrier.wait();
      if (!me) {
        for (int k = 0; k < n; ++k) {
          loss += 0.5 * double(share[k]) * slope[k] * slope[k];
        }
        count += n;
      }
      // Adds the gradients of a side's words, each from the rows `other(k)` of its cells.
      auto side = [&](const std::vector<int32_t>& ids, float* table, float* bias, float* sum, float* square,
                      const float* rate, auto other) {
        float vectors = n ? rate[0] / n : 0.0f, biases = n ? rate[1] / n : 0.0f;
        chains.build(ids, me, team);
        const std::vector<int32_t>& heads = chains.heads;
        for (size_t h = 0; h < heads.size(); ++h) {
          if (h + 3 < heads.size()) prefetch(sum + size_t(ids[heads[h + 3]]) * width, width);
          int k = heads[h];
          size_t id = ids[k];
          float whole = share[k] * slope[k];
          if (chains.next[k] < 0) {
            descend_row(table + id * width, sum + id * width, other(k), vectors * whole, width);
          } else {
            std::fill(total.begin(), total.end(), 0.0f);
            whole = 0;
            for (; k >= 0; k = chains.next[k]) {
              float factor = share[k] * slope[k];
              const float* row = other(k);
              for (int d = 0; d < width; ++d) total[d] += factor * row[d];
              whole += factor;
            }
            descend_row(table + id * width, sum + id * width, total.data(), vectors, width);
          }
          float step = biases * whole;
          bias[id] -= step / __builtin_sqrtf(square[id]);
          square[id] += step * step;
        }
      };
      side(first, w, b, sw, sb, rates.typed_data(), [&](int k) { return v + size_t(second[k]) * width; });
      barrier.wait();
      side(second, v, c, sv, sc, rates.typed_data() + 2, [&](int k) { return &old[size_t(k) * width]; });
      barrier.wait();
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < team; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& thread : others) thread.join();
  sums->typed_data()[0] = float(loss), sums->typed_data()[1] = float(count);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ptm_words_cells, cells,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("updates")
                                  .Attr<int64_t>("threads"));
