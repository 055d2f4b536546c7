#ifndef WEFT_BENCHMARKS_RANK_TIMER_H_
#define WEFT_BENCHMARKS_RANK_TIMER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"

namespace weft {

// The straightforward barrier of threads: one counter; a thread that waits spins, then sleeps.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int num_threads) : num_threads_(num_threads) {}

  void Wait();

 private:
  static constexpr int kSpins = 2000;

  const int num_threads_;
  alignas(128) std::atomic<int> num_arrived_ = 0;
  alignas(128) std::atomic<int> generation_ = 0;
};

// Times calls that all threads of a team make together: one object for the team.
class RankTimer {
 public:
  explicit RankTimer(int num_ranks) : barrier_(num_ranks) {}

  // Every rank of the team calls it with as many calls as the others, each its own part. Returns on rank 0
  // the median time of each call in nanoseconds, from a common start until all ranks are done; elsewhere
  // zeros. The calls take turns in batches of about `seconds` / 5, each after one that is not counted, so
  // that what the machine does meanwhile meets all of them.
  std::vector<double> Measure(int rank, absl::Span<const std::function<void()>> calls, double seconds = 0.02);

  ThreadBarrier& barrier() { return barrier_; }

 private:
  // Nanoseconds from a common start until all have made the call `count` times.
  double Batch(const std::function<void()>& call, int64_t count);

  ThreadBarrier barrier_;
  std::atomic<int64_t> next_count_ = 0;  // rank 0's verdict on a batch: 0: it was long enough
};

}  // namespace weft

#endif  // WEFT_BENCHMARKS_RANK_TIMER_H_
