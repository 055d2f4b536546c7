#include "benchmarks/plain_collectives.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "benchmarks/figure.h"

namespace weft {
namespace {

// As wide as a compiler makes the plain loop, so that the comparison is of algorithms.
[[gnu::target_clones("default", "avx2", "avx512f")]] void Sum(const float* a, const float* b, float* sum,
                                                              int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

// Keeps the calling thread on the core that it runs on, or on `core`.
void PinTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

void PlainAllReduce(ThreadBarrier& barrier, int rank, absl::Span<float* const> inputs,
                    absl::Span<float* const> outputs, float* scratch, int64_t count) {
  constexpr int64_t kBlock = 4096;
  const int64_t size = static_cast<int64_t>(inputs.size());
  barrier.Wait();
  const int64_t end = count * (rank + 1) / size;
  for (int64_t begin = count * rank / size; begin < end; begin += kBlock) {
    const int64_t length = std::min(kBlock, end - begin);
    Sum(inputs[0] + begin, inputs[1] + begin, scratch + begin, length);
    for (int64_t peer = 2; peer < size; ++peer) {
      Sum(scratch + begin, inputs[peer] + begin, scratch + begin, length);
    }
    for (float* output : outputs) std::memcpy(output + begin, scratch + begin, length * sizeof(float));
  }
  barrier.Wait();
}

double HandOverNanoseconds() {
  constexpr int kTurns = 2000;
  constexpr int kBatches = 5;
  const int core = sched_getcpu();
  std::atomic<int> turn = 0;
  std::vector<double> times;
  const auto play = [&](int me) {
    PinTo(core);
    for (int batch = 0; batch < kBatches; ++batch) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kTurns; ++i) {
        while (turn.load() != me) std::this_thread::yield();
        turn.store(1 - me);
      }
      const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
      if (me == 0) times.push_back(elapsed.count() / (2 * kTurns));
    }
  };
  std::thread other(play, 1);
  std::thread one(play, 0);
  one.join();
  other.join();
  return Median(times);
}

}  // namespace weft
