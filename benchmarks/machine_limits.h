#ifndef WEFT_BENCHMARKS_MACHINE_LIMITS_H_
#define WEFT_BENCHMARKS_MACHINE_LIMITS_H_

#include <cstdint>

namespace weft {

// What this machine does at best, measured when asked (a quarter of a second each): what kernels are held
// against. Each takes the number of threads that work at once; they should not outnumber the idle cores.

// Flops a second of multiply-adds on registers, two flops each, in the widest vectors the processor has.
double PeakFlopsF32(int threads);

// The same of the processor's dot products of bf16 summed in f32: of tiles (AMX), otherwise of pairs (AVX512-BF16);
// 0 where it has neither.
double PeakFlopsBF16(int threads);

// Bytes a second of STREAM's triad, a[i] = b[i] + s * c[i] on f32, where the three arrays take `num_bytes`
// together: a kernel is held against the triad of its own size, since caches serve both. Counts 12 bytes an
// element, as STREAM does: not the read of a line that is about to be overwritten.
double TriadBytesPerSecond(int64_t num_bytes, int threads);

// Bytes a second of a copy of `num_bytes` that another thread, elsewhere, has just written: what goes from core to core comes from
// where another has it, and not from this core's own cache.
double CopiedBytesPerSecond(int64_t num_bytes);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_MACHINE_LIMITS_H_
