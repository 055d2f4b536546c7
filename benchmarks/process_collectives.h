#ifndef WEFT_BENCHMARKS_PROCESS_COLLECTIVES_H_
#define WEFT_BENCHMARKS_PROCESS_COLLECTIVES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft {

// The `gloo` backend among ranks that are processes of this machine.
struct ProcessCollectives {
  int num_ranks = 2;
  bool over_tcp = false;       // on the loopback device; else through shared memory
  std::vector<int64_t> sizes;  // bytes of a rank's buffer
  // Which to measure, and where the nanoseconds of a call go: called in rank 0's process. `alone_ns`: of a list,
  // what its parts take one by one, in turn with it; otherwise 0.
  std::function<bool(const std::string& collective, int64_t size)> wanted = {};
  std::function<void(const std::string& collective, int64_t size, double ns, double alone_ns)> report = {};
};

// Forks the ranks from this process, which has no other thread, and returns when they have ended.
// Errors: Internal if one of them fails, which has said why.
void MeasureProcesses(const ProcessCollectives& measured);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_PROCESS_COLLECTIVES_H_
