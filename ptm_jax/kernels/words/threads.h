// What threads of a CPU that make an update together share.

#pragma once

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

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

// Runs work(0), ..., work(team - 1) at once and returns when all have ended.
template <typename Work>
static void together(int team, const Work& work) {
  std::vector<std::thread> others;
  for (int i = 1; i < team; ++i) others.emplace_back(work, i);
  work(0);
  for (auto& thread : others) thread.join();
}
