// A program that links this has a posix_fallocate to which signals come all the time, as a profiler's.

#ifndef WEFT_TESTS_RUNTIME_BASE_INTERRUPTED_FALLOCATE_H_
#define WEFT_TESTS_RUNTIME_BASE_INTERRUPTED_FALLOCATE_H_

namespace weft {

// How many calls a signal has ended so far.
int NumInterruptedCalls();

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_BASE_INTERRUPTED_FALLOCATE_H_
