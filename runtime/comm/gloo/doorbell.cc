#include "runtime/comm/gloo/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace weft {

// Not the private futexes: those are found by process and address.
void Doorbell::Wake() {
  count.fetch_add(1);
  syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::Sleep(uint32_t seen, std::chrono::milliseconds timeout) {
  timespec length = {};
  length.tv_sec = timeout.count() / 1000;
  length.tv_nsec = timeout.count() % 1000 * 1000000;
  syscall(SYS_futex, &count, FUTEX_WAIT, seen, &length, nullptr, 0);
}

}  // namespace weft
