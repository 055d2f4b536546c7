// A library to be loaded before all others (LD_PRELOAD), which cuts short what a process writes to the files of a folder, as any kernel
// may: half of the bytes of a call are written, and the call says so. Whoever does not go on then loses the rest.
//
//   CUT_WRITES_UNDER=FOLDER   absolute, without links: the files below it
//   CUT_WRITES_WHILE=FILE     as long as this file is there; each write that was cut adds a byte to it
//
// Calls that the C library makes for itself, as in fwrite, do not come here.

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>

namespace {

bool IsBelow(int file, const char* folder) {
  char link[64];
  char path[PATH_MAX];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof(path));
  const size_t prefix = strlen(folder);
  return length > 0 && static_cast<size_t>(length) > prefix && memcmp(path, folder, prefix) == 0 &&
         path[prefix] == '/';
}

// How many of `num_bytes` that are to be written to `file` are written by this call.
size_t Cut(int file, size_t num_bytes) {
  const char* const folder = getenv("CUT_WRITES_UNDER");
  const char* const sign = getenv("CUT_WRITES_WHILE");
  if (folder == nullptr || sign == nullptr || num_bytes < 2 || !IsBelow(file, folder)) return num_bytes;
  const int count = open(sign, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (count < 0) return num_bytes;
  const bool is_counted = syscall(SYS_write, count, "|", 1) == 1;
  close(count);
  return is_counted ? num_bytes / 2 : num_bytes;
}

// Of several buffers, the first that is not empty.
const iovec* FirstOf(const iovec* buffers, int count) {
  for (int i = 0; i < count; ++i) {
    if (buffers[i].iov_len > 0) return &buffers[i];
  }
  return nullptr;
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, size_t num_bytes) {
  return syscall(SYS_write, file, data, Cut(file, num_bytes));
}

ssize_t pwrite(int file, const void* data, size_t num_bytes, off_t offset) {
  return syscall(SYS_pwrite64, file, data, Cut(file, num_bytes), offset);
}

ssize_t pwrite64(int file, const void* data, size_t num_bytes, off64_t offset) {
  return pwrite(file, data, num_bytes, offset);
}

ssize_t writev(int file, const iovec* buffers, int count) {
  const iovec* const first = FirstOf(buffers, count);
  if (first == nullptr || Cut(file, first->iov_len) == first->iov_len) {
    return syscall(SYS_writev, file, buffers, count);
  }
  return syscall(SYS_write, file, first->iov_base, first->iov_len / 2);
}

ssize_t pwritev(int file, const iovec* buffers, int count, off_t offset) {
  const iovec* const first = FirstOf(buffers, count);
  if (first == nullptr || Cut(file, first->iov_len) == first->iov_len) {
    return syscall(SYS_pwritev, file, buffers, count, offset, 0L);
  }
  return syscall(SYS_pwrite64, file, first->iov_base, first->iov_len / 2, offset);
}

ssize_t pwritev64(int file, const iovec* buffers, int count, off64_t offset) {
  return pwritev(file, buffers, count, offset);
}

}  // extern "C"
