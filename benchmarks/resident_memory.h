#ifndef WEFT_BENCHMARKS_RESIDENT_MEMORY_H_
#define WEFT_BENCHMARKS_RESIDENT_MEMORY_H_

#include <cstdint>

namespace weft {

// The process's largest resident set since the last reset, as the kernel counts it (VmHWM; what getrusage
// calls ru_maxrss): code, heap, whatever libraries hold. 0 where the kernel does not say.
int64_t PeakResidentBytes();

// Starts that count anew, at what is resident now, once the C library has given back what nobody uses: what
// was measured before leaves nothing behind. Where the kernel refuses, the peak stays the process's.
void ResetPeakResident();

}  // namespace weft

#endif  // WEFT_BENCHMARKS_RESIDENT_MEMORY_H_
