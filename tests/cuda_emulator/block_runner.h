#ifndef WEFT_TESTS_CUDA_EMULATOR_BLOCK_RUNNER_H_
#define WEFT_TESTS_CUDA_EMULATOR_BLOCK_RUNNER_H_

#include <functional>

#include "cuda_runtime.h"

namespace cuda_emulator {

// Runs `thread` for every thread of every block of the grid, on the calling thread.
// Errors: std::logic_error if the threads of a block wait for each other for ever; what `thread` throws.
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

}  // namespace cuda_emulator

#endif  // WEFT_TESTS_CUDA_EMULATOR_BLOCK_RUNNER_H_
