// A small model in training on emulated GPUs over a fake NCCL, and what of its waits can be left out.

#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_CUDA_TRAINING_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_CUDA_TRAINING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/plan.h"
#include "tests/runtime/comm/nccl/fake_api.h"

namespace weft {

inline constexpr int64_t kCudaDim = 6;

struct CudaCase {
  const char* name = "";
  const char* mesh = "";
  Plan plan = {};
};

std::vector<CudaCase> CudaCases();

// Of rank 0: the losses of `num_steps` steps of two microbatches, that of an evaluation behind them, and the parameters. Memory
// that is given back turns to NaN. With `registering` that is the fake NCCL, and memory is registered with it.
std::vector<double> TrainOnGpus(const CudaCase& of, bool overlap, int num_steps = 4,
                                std::shared_ptr<FakeNccl> registering = nullptr);
// The same on CPUs.
std::vector<double> TrainOnCpus(const CudaCase& of, bool overlap, int num_steps = 4);

// Whether training with overlap ends without an error, and in these numbers.
bool HasOutcome(const CudaCase& of, const std::vector<double>& expected, int num_steps = 4);

// Trains for two steps, again and again, and leaves out one wait of the rank's stream in each run. For each other stream the
// first wait is tried, and every `stride`-th behind it. Returns those that ordered something in ten runs and changed the outcome
// of none, as "wait 25 of 26 for stream 1"; both count from 0.
std::vector<std::string> UnseenWaitsOfRank(const CudaCase& of, int64_t stride);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_CUDA_TRAINING_H_
