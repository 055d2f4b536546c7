#ifndef WEFT_TESTS_CUDA_EMULATOR_WARP_INSTRUCTIONS_H_
#define WEFT_TESTS_CUDA_EMULATOR_WARP_INSTRUCTIONS_H_

#include <cstdint>

namespace cuda_emulator {

// What PTX has and the CUDA runtime has no name for. The PTX manual says which lane holds what.
// Errors: std::logic_error if not all 32 lanes of a warp call the same one, or for addresses not aligned.

enum class HalfType { kBF16, kF16 };

// mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32: d [4] += a [4] b [2]. Sums in float, by rising k.
void MultiplyAccumulate(HalfType type, float* d, const uint32_t* a, const uint32_t* b);

// ldmatrix.sync.aligned.m8n8.x4.shared.b16, or the same with .trans: `row` is the lane's of the 32 rows of 16
// bytes.
void LoadMatrices(bool transposed, const void* row, uint32_t* fragments);

// cp.async of 4 or 16 bytes, zeros if `from` is null, and cp.async.wait_all. Nothing arrives before the
// thread waits for it, and until then `to` holds NaN bits.
void CopyAsync(void* to, const void* from, int num_bytes);
void WaitAsync();

}  // namespace cuda_emulator

#endif  // WEFT_TESTS_CUDA_EMULATOR_WARP_INSTRUCTIONS_H_
