// Parts of a computation that the threads of XLA's pool take in turn.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

// Runs part(0), ..., part(count - 1) and returns when all have ended. `part` is copied. A task that starts after the last part was
// taken does nothing, and owns nothing of the caller's.
template <typename Part>
static void in_turn(xla::ffi::ThreadPool pool, int64_t count, const Part& part) {
  struct Parts {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex lock;
    std::condition_variable all;
  };
  auto parts = std::make_shared<Parts>();
  auto work = [parts, count, part] {
    for (int64_t i; (i = parts->next.fetch_add(1)) < count;) {
      part(i);
      std::lock_guard<std::mutex> hold(parts->lock);
      if (++parts->done == count) parts->all.notify_all();
    }
  };
  int64_t threads = std::max<int64_t>(1, pool.num_threads());
  for (int64_t t = 1; t < std::min(threads, count); ++t) pool.Schedule(std::decay_t<decltype(work)>(work));
  work();
  std::unique_lock<std::mutex> hold(parts->lock);
  parts->all.wait(hold, [&] { return parts->done == count; });
}
