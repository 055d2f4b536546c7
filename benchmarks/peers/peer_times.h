#ifndef WEFT_BENCHMARKS_PEERS_PEER_TIMES_H_
#define WEFT_BENCHMARKS_PEERS_PEER_TIMES_H_

// What the peers' programs share: the sizes of //benchmarks:collectives, how calls are timed there, and how
// its --peer reads times. Knows nothing of Weft, so that a compiler and the peer's library are all a program
// needs.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace peers {

inline constexpr int64_t kSizes[] = {4,         64,      1 << 10, 4 << 10,  32 << 10,
                                     256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

// "1MiB".
inline std::string SizeName(int64_t num_bytes) {
  if (num_bytes % (1 << 20) == 0) return std::to_string(num_bytes >> 20) + "MiB";
  if (num_bytes % (1 << 10) == 0) return std::to_string(num_bytes >> 10) + "KiB";
  return std::to_string(num_bytes) + "B";
}

// The median time in nanoseconds of a call that all ranks make together, from a common start until all are
// done, in batches of about 10 ms. `barrier` joins the ranks; `agree` gives all of them rank 0's number.
inline double CallNanoseconds(const std::function<void()>& call, const std::function<void()>& barrier,
                              const std::function<int64_t(int64_t)>& agree) {
  constexpr double kBatchNanoseconds = 1e7;
  constexpr int kBatches = 5;
  const auto batch = [&](int64_t count) {
    call();
    barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) call();
    barrier();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  };
  int64_t count = 1;
  while (agree(batch(count) < kBatchNanoseconds / 2) != 0) count *= 4;
  std::vector<double> times;
  for (int i = 0; i < kBatches; ++i) times.push_back(batch(count) / static_cast<double>(count));
  std::sort(times.begin(), times.end());
  return times[kBatches / 2];
}

// Prints one entry: ",PEER:all_reduce/2r/1MiB=NS".
inline void PrintTime(const char* peer, const char* collective, int num_ranks, int64_t num_bytes, double ns) {
  std::printf(",%s:%s/%dr/%s=%.0f", peer, collective, num_ranks, SizeName(num_bytes).c_str(),
              std::max(ns, 1.0));
  std::fflush(stdout);
}

}  // namespace peers

#endif  // WEFT_BENCHMARKS_PEERS_PEER_TIMES_H_
