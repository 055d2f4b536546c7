#include "runtime/comm/gloo/ring_channel.h"

#include <algorithm>
#include <cstring>

namespace weft {
namespace {

// Shown to the reader at a time: it works on one part while the next is being written, and what passes from
// core to core is still in a cache.
constexpr int64_t kAtATime = 32 << 10;

}  // namespace

void RingChannel::Send(const void* data, int64_t num_bytes) {
  if (num_bytes == 0) return;
  const bool first = !sending();
  out_.push_back({static_cast<char*>(const_cast<void*>(data)), num_bytes});
  num_unsent_ += num_bytes;
  if (first) PumpOut();
}

void RingChannel::Receive(void* data, int64_t num_bytes) {
  if (num_bytes == 0) return;
  ++num_receives_;
  in_.push_back({static_cast<char*>(data), num_bytes});
}

int64_t RingChannel::PumpOut() {
  int64_t moved = 0;
  while (next_out_ < out_.size()) {
    Part& part = out_[next_out_];
    const int64_t written = writer_.Write(part.data, std::min(part.num_bytes, kAtATime));
    if (written == 0) return moved;
    peer_bell_->Ring();
    moved += written;
    part.data += written;
    part.num_bytes -= written;
    num_unsent_ -= written;
    if (part.num_bytes == 0) ++next_out_;
  }
  out_.clear();
  next_out_ = 0;
  return moved;
}

int64_t RingChannel::PumpIn() {
  int64_t moved = 0;
  while (next_in_ < in_.size()) {
    Part& part = in_[next_in_];
    const absl::Span<const char> front = reader_.Front(std::min(part.num_bytes, kAtATime));
    const int64_t length = static_cast<int64_t>(front.size());
    if (length == 0) return moved;
    std::memcpy(part.data, front.data(), length);
    Consume(length);
    moved += length;
    part.data += length;
    part.num_bytes -= length;
    if (part.num_bytes == 0) {
      ++next_in_;
      ++num_received_;
    }
  }
  in_.clear();
  next_in_ = 0;
  return moved;
}

}  // namespace weft
