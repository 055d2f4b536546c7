// What starts the ranks of a test.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_RANK_LAUNCHER_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_RANK_LAUNCHER_H_

#include <functional>

#include "runtime/launch/run_ranks.h"

namespace weft {

// Runs `body` on so many ranks, as RunRanks does.
using RankLauncher = std::function<void(int num_ranks, const std::function<void(World&)>& body)>;

inline void OnCpus(int num_ranks, const std::function<void(World&)>& body) { RunRanks(num_ranks, body); }

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_RANK_LAUNCHER_H_
