#include "runtime/comm/gloo/reduce_stream.h"

#include <algorithm>

#include "runtime/comm/reduction.h"

namespace weft {
namespace {

// A reduction of less is not worth its start, if more is coming.
constexpr int64_t kLeastPart = 16 << 10;

bool IsSmall(absl::Span<const char> front, int64_t wanted) {
  return static_cast<int64_t>(front.size()) < std::min(wanted, kLeastPart);
}

}  // namespace

bool ReduceStream::Awaits(int peer) const {
  if (wanted_ == 0 || !group_.by_memory(peer)) return false;
  RingChannel& ring = group_.ring(peer, GlooLane::kCollective);
  const absl::Span<const char> front = ring.Front(wanted_);
  return !ring.IsWhole(front, wanted_) && IsSmall(front, wanted_);
}

void ReduceStream::Expect(int64_t num_bytes) {
  if (num_bytes <= 0 || group_.tcp_peers().empty()) return;
  const int place = static_cast<int>(num_expected_++ % ahead_);
  numbers_[place].resize(group_.size());
  for (int peer : group_.tcp_peers()) {
    PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
    channel.Receive(group_.staging(peer) + place * block_bytes(), num_bytes);
    numbers_[place][peer] = channel.num_receives();
  }
}
static_assert(GlooGroup::kStagingBytes / 2 == TcpChannel::kBlock, "a channel cuts messages into blocks");

void ReduceStream::AwaitBlock(GlooWait& wait, int place) {
  for (int peer : group_.tcp_peers()) {
    const PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
    const int64_t number = numbers_[place][peer];
    group_.AwaitTcpReceives(
        peer, GlooLane::kCollective, [&] { return channel.num_received() >= number; }, wait);
  }
}

int64_t ReduceStream::AwaitPart(const Whole& whole, int64_t begin, int64_t wanted) {
  if (group_.ring_peers().empty()) return wanted;
  int64_t part = 0;
  wanted_ = wanted;
  group_.Await(
      [&] {
        part = wanted;
        bool more_may_come = false;
        for (int peer : group_.ring_peers()) {
          RingChannel& ring = group_.ring(peer, GlooLane::kCollective);
          const absl::Span<const char> front = ring.Front(wanted);
          // A peer that has sent enough is not waited for: Awaits does not name it, so its death would not be seen. Unless what
          // is unsent may be what is short.
          more_may_come |= !ring.IsWhole(front, wanted) && (whole.wait_until_sent || IsSmall(front, wanted));
          part = std::min(part, static_cast<int64_t>(front.size()));
          // What is sent goes in order: all but the last num_unsent bytes are in the ring.
          if (whole.wait_until_sent)
            part = std::min(part, whole.num_bytes + whole.num_behind - ring.num_unsent() - begin);
        }
        if (part < wanted) part = part / kRingLine * kRingLine;
        return part > 0 && (part >= std::min(wanted, kLeastPart) || !more_may_come);
      },
      whole.wait);
  wanted_ = 0;
  return part;
}

void ReduceStream::ReduceBlock(const Whole& whole, int64_t begin, int64_t end) {
  if (begin == end) return;
  const int place = static_cast<int>(num_reduced_ % ahead_);
  if (!group_.tcp_peers().empty()) {
    AwaitBlock(whole.wait, place);
    ++num_reduced_;
  }
  absl::InlinedVector<const void*, 8> inputs(group_.size());
  for (int64_t at = begin; at < end;) {
    const int64_t part = AwaitPart(whole, at, end - at);
    // By TCP the blocks that have been asked for still come; none is asked for meanwhile.
    group_.HoldTurn();
    inputs[group_.rank()] = whole.own + at;
    for (int peer : group_.ring_peers())
      inputs[peer] = group_.ring(peer, GlooLane::kCollective).Front(part).data();
    for (int peer : group_.tcp_peers()) {
      inputs[peer] = group_.staging(peer) + place * block_bytes() + (at - begin);
    }
    void* const to = whole.output + at;
    ReduceInOrder(dtype_, op_, inputs, {&to, 1}, part / ItemSize(dtype_));
    for (int peer : group_.ring_peers()) group_.ring(peer, GlooLane::kCollective).Consume(part);
    at += part;
    group_.FillTurn(part * (group_.size() - 1));
  }
}

void ReduceStream::Reduce(GlooWait& wait, const char* own, char* output, int64_t num_bytes) {
  ReduceBlock({wait, own, output, num_bytes}, 0, num_bytes);
}

void ReduceStream::ExpectNext() {
  while (next_whole_ < wholes_.size() && next_begin_ >= wholes_[next_whole_]) {
    ++next_whole_;
    next_begin_ = 0;
  }
  if (next_whole_ == wholes_.size()) return;
  const int64_t num_bytes = std::min(block_bytes(), wholes_[next_whole_] - next_begin_);
  next_begin_ += num_bytes;
  Expect(num_bytes);
}

void ReduceStream::ExpectWholes(absl::Span<const int64_t> num_bytes) {
  wholes_.assign(num_bytes.begin(), num_bytes.end());
  for (int i = 0; i < ahead_; ++i) ExpectNext();
}

void ReduceStream::ReduceWhole(const Whole& whole) {
  if (group_.tcp_peers().empty()) return ReduceBlock(whole, 0, whole.num_bytes);
  for (int peer : group_.tcp_peers()) {
    const PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
    if (!whole.wait_until_sent) break;
    group_.AwaitTcpSends(
        peer, GlooLane::kCollective, [&] { return !channel.sending(); }, whole.wait);
  }
  for (int64_t begin = 0; begin < whole.num_bytes; begin += block_bytes()) {
    ReduceBlock(whole, begin, std::min(whole.num_bytes, begin + block_bytes()));
    ExpectNext();
  }
}

}  // namespace weft
