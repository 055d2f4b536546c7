#ifndef WEFT_RUNTIME_COMM_GLOO_RING_H_
#define WEFT_RUNTIME_COMM_GLOO_RING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace weft {

// What is written to a ring and read from it goes in whole lines, so both ends always stand at the start of
// one: what a reader is shown is aligned for every dtype and no element wraps around.
inline constexpr int64_t kRingLine = 64;

constexpr int64_t WholeLines(int64_t num_bytes) {
  return (num_bytes + kRingLine - 1) / kRingLine * kRingLine;
}

// A queue of bytes from one process to one other, in memory that both have mapped: how far its two ends have
// got since it was made, each on lines of its own. All zeros is an empty ring.
struct RingEnds {
  alignas(128) std::atomic<uint64_t> written;
  alignas(128) std::atomic<uint64_t> read;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "it is shared by processes");

// The writing end. Views the shared memory; `capacity` is a power of two, at least a line.
class RingWriter {
 public:
  RingWriter(RingEnds* ends, char* bytes, int64_t capacity)
      : ends_(ends), bytes_(bytes), capacity_(capacity) {}

  // Copies as many of `num_bytes` as there is room for, padded to whole lines, and shows them to the reader.
  // Returns how many; fewer than `num_bytes` are whole lines.
  int64_t Write(const char* from, int64_t num_bytes) {
    const int64_t wanted = WholeLines(num_bytes);
    if (Room() < wanted) seen_read_ = ends_->read.load();
    const int64_t length = std::min(wanted, Room());
    if (length == 0) return 0;
    const int64_t copied = std::min(length, num_bytes);
    const int64_t place = static_cast<int64_t>(written_) & (capacity_ - 1);
    const int64_t first = std::min(copied, capacity_ - place);
    std::memcpy(bytes_ + place, from, first);
    if (copied > first) std::memcpy(bytes_, from + first, copied - first);
    written_ += static_cast<uint64_t>(length);
    ends_->written.store(written_);
    return copied;
  }

 private:
  int64_t Room() const { return capacity_ - static_cast<int64_t>(written_ - seen_read_); }

  RingEnds* ends_;
  char* bytes_;
  int64_t capacity_;
  uint64_t written_ = 0;
  uint64_t seen_read_ = 0;  // what is known of the other end: a look at it costs a cache line
};

// The reading end.
class RingReader {
 public:
  RingReader(RingEnds* ends, const char* bytes, int64_t capacity)
      : ends_(ends), bytes_(bytes), capacity_(capacity) {}

  // What there is to read, up to `wanted` bytes and up to where the ring wraps around: whole lines, or all of
  // `wanted`. Stays until Consume.
  absl::Span<const char> Front(int64_t wanted) {
    const int64_t place = static_cast<int64_t>(read_) & (capacity_ - 1);
    const int64_t most = std::min(wanted, capacity_ - place);
    if (Ready() < most) seen_written_ = ends_->written.load();
    return {bytes_ + place, static_cast<size_t>(std::min(most, Ready()))};
  }

  // True if Front(wanted) cannot get longer: it is all, or it ends where the ring wraps around.
  bool IsWhole(absl::Span<const char> front, int64_t wanted) const {
    const int64_t place = static_cast<int64_t>(read_) & (capacity_ - 1);
    return static_cast<int64_t>(front.size()) == std::min(wanted, capacity_ - place);
  }

  // Gives the bytes back to the writer, with the padding of the last line.
  void Consume(int64_t num_bytes) {
    read_ += static_cast<uint64_t>(WholeLines(num_bytes));
    ends_->read.store(read_);
  }

 private:
  int64_t Ready() const { return static_cast<int64_t>(seen_written_ - read_); }

  RingEnds* ends_;
  const char* bytes_;
  int64_t capacity_;
  uint64_t read_ = 0;
  uint64_t seen_written_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_RING_H_
