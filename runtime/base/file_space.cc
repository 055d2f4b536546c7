#include "runtime/base/file_space.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace weft {

// Where a signal ends a call, a file system in memory gives back what that call had got (Debian 12's kernel; later ones listen to
// signals that kill only), so under frequent signals only small pieces get on. Without any, one call costs least.
int GetFileSpace(int descriptor, int64_t offset, int64_t num_bytes) {
  constexpr int64_t kSmallestPiece = 4 << 10;
  int64_t piece = num_bytes;
  while (num_bytes > 0) {
    const int64_t length = std::min(piece, num_bytes);
    const int error = posix_fallocate(descriptor, offset, length);
    if (error == 0) {
      offset += length;
      num_bytes -= length;
    } else if (error == EINTR) {
      piece = std::max(piece / 2, kSmallestPiece);
    } else {
      return error;
    }
  }
  return 0;
}

}  // namespace weft
