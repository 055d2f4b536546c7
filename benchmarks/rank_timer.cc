#include "benchmarks/rank_timer.h"

#include <algorithm>
#include <chrono>

#include "benchmarks/figure.h"

namespace weft {
namespace {

constexpr int kBatches = 5;

}  // namespace

void ThreadBarrier::Wait() {
  const int generation = generation_.load(std::memory_order_acquire);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    num_arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  while (generation_.load(std::memory_order_acquire) == generation) {
    generation_.wait(generation, std::memory_order_acquire);
  }
}

double RankTimer::Batch(const std::function<void()>& call, int64_t count) {
  call();
  barrier_.Wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) call();
  barrier_.Wait();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<double> RankTimer::Measure(int rank, absl::Span<const std::function<void()>> calls,
                                       double seconds) {
  const double batch_nanoseconds = seconds * 1e9 / kBatches;
  std::vector<int64_t> counts;
  for (const std::function<void()>& call : calls) {
    int64_t count = 1;
    // The barriers of a batch may take long: they must not be taken for the call's own time.
    for (bool enough = false; !enough;) {
      const double ns = Batch(call, count);
      if (rank == 0) next_count_ = ns > batch_nanoseconds / 2 ? 0 : 4 * count;
      barrier_.Wait();
      enough = next_count_ == 0;
      if (!enough) count = next_count_;
      barrier_.Wait();
    }
    counts.push_back(count);
  }
  std::vector<std::vector<double>> times(calls.size());
  for (int batch = 0; batch < kBatches; ++batch) {
    for (size_t i = 0; i < calls.size(); ++i) {
      times[i].push_back(Batch(calls[i], counts[i]) / static_cast<double>(counts[i]));
    }
  }
  std::vector<double> medians(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) medians[i] = rank == 0 ? Median(times[i]) : 0;
  return medians;
}

}  // namespace weft
