#ifndef WEFT_TESTS_CUDA_EMULATOR_BLOCK_RUNNER_H_
#define WEFT_TESTS_CUDA_EMULATOR_BLOCK_RUNNER_H_

#include <functional>
#include <vector>

#include "cuda_runtime.h"

namespace cuda_emulator {

// Runs `thread` for every thread of every block of the grid, on the calling thread.
// Errors: std::logic_error if the threads of a block wait for each other for ever; what `thread` throws.
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

// What follows is called by a thread of a block that runs.

// An instruction of a whole warp: when its 32 lanes have come with their operands, `run` gets all of these,
// by lane, and they go on.
// Errors: std::logic_error if some lanes end, wait elsewhere or come for another instruction.
void Together(void* operands, void (*run)(void* const* lanes));

// Copies that the thread has begun and not waited for.
struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
  int num_bytes;
};
std::vector<AsyncCopy>& AsyncCopies();

}  // namespace cuda_emulator

#endif  // WEFT_TESTS_CUDA_EMULATOR_BLOCK_RUNNER_H_
