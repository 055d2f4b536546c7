#ifndef WEFT_TESTS_CUDA_EMULATOR_GEMM_COUNT_H_
#define WEFT_TESTS_CUDA_EMULATOR_GEMM_COUNT_H_

#include <cstdint>

namespace weft {

// How many products the emulated library has made since the program began; a batch is one.
int64_t NumGemms();

// How many products of the emulated library have had a gelu_input or b_sums since the program began.
int64_t NumFusedGemms();

}  // namespace weft

#endif  // WEFT_TESTS_CUDA_EMULATOR_GEMM_COUNT_H_
