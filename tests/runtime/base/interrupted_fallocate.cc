#include "tests/runtime/base/interrupted_fallocate.h"

#include <fcntl.h>

#include <cerrno>

namespace {

// What is got between two signals.
constexpr off_t kBetweenSignals = 32 << 10;

int num_interrupted = 0;

}  // namespace

// The C library's, as tmpfs answers in Debian 12's kernel: a signal ends the call, and what it had got by then is given back.
// Later kernels listen to signals that kill only, so signals alone would show nothing there.
extern "C" int posix_fallocate(int descriptor, off_t begin, off_t num_bytes) {
  if (num_bytes > kBetweenSignals) {
    ++num_interrupted;
    return EINTR;
  }
  return fallocate(descriptor, /*mode=*/0, begin, num_bytes) == 0 ? 0 : errno;
}

namespace weft {

int NumInterruptedCalls() { return num_interrupted; }

}  // namespace weft
