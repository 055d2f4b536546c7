#include "tools/launcher/workers/output_queue.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace weft {

void OutputQueue::Append(absl::string_view text) {
  if (!reader_gone_) pending_.append(text.data(), text.size());
}

void OutputQueue::WriteSome() {
  size_t written = 0;
  while (written < pending_.size()) {
    // The file is shared with whoever started this program, so it stays a blocking one. But a pipe that polls
    // as ready takes PIPE_BUF bytes at once.
    pollfd ready = {fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) break;
    const size_t size = std::min<size_t>(pending_.size() - written, PIPE_BUF);
    const ssize_t count = write(fd_, pending_.data() + written, size);
    if (count > 0) {
      written += static_cast<size_t>(count);
    } else if (count < 0 && errno != EINTR && errno != EAGAIN) {
      // Such a reader does not come back; a disk may have room again.
      reader_gone_ = errno == EPIPE;
      if (!reader_gone_) problem_ = strerror(errno);
      written = pending_.size();
    } else {
      break;
    }
  }
  pending_.erase(0, written);
}

}  // namespace weft
