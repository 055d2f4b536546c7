#include "runtime/comm/gloo/reduce_stream.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

// A reduction of less is not worth its start, if more is coming.
constexpr int64_t kLeastPart = 16 << 10;

}  // namespace

bool ReduceStream::Awaits(int peer) const {
  if (wanted_ == 0 || !group_.by_memory(peer)) return false;
  RingChannel& ring = group_.ring(peer, GlooLane::kCollective);
  const absl::Span<const char> front = ring.Front(wanted_);
  return !ring.IsWhole(front, wanted_) && static_cast<int64_t>(front.size()) < std::min(wanted_, kLeastPart);
}

void ReduceStream::Expect(int64_t num_bytes) {
  if (num_bytes <= 0 || group_.tcp_peers().empty()) return;
  const int place = static_cast<int>(num_expected_++ % kAhead);
  numbers_[place].resize(group_.size());
  for (int peer : group_.tcp_peers()) {
    PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
    channel.Receive(group_.staging(peer) + place * TcpChannel::kBlock, num_bytes);
    numbers_[place][peer] = channel.num_receives();
  }
}
static_assert(ReduceStream::kAhead * TcpChannel::kBlock <= GlooGroup::kStagingBytes, "they lie there");

void ReduceStream::AwaitBlock(GlooWait& wait, int place) {
  for (int peer : group_.tcp_peers()) {
    const PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
    const int64_t number = numbers_[place][peer];
    group_.AwaitTcpReceives(
        peer, GlooLane::kCollective, [&] { return channel.num_received() >= number; }, wait);
  }
}

int64_t ReduceStream::AwaitPart(const Job& job, int64_t begin, int64_t wanted) {
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
          more_may_come |= !ring.IsWhole(front, wanted);
          part = std::min(part, static_cast<int64_t>(front.size()));
          // What is sent goes in order: all but the last num_unsent bytes are in the ring.
          if (job.wait_until_sent) part = std::min(part, job.num_bytes - ring.num_unsent() - begin);
        }
        if (part < wanted) part = part / kRingLine * kRingLine;
        return part > 0 && (part >= std::min(wanted, kLeastPart) || !more_may_come);
      },
      job.wait);
  wanted_ = 0;
  return part;
}

void ReduceStream::ReduceBlock(const Job& job, int64_t begin, int64_t end) {
  if (begin == end) return;
  const int place = static_cast<int>(num_reduced_ % kAhead);
  if (!group_.tcp_peers().empty()) {
    AwaitBlock(job.wait, place);
    ++num_reduced_;
  }
  absl::InlinedVector<const void*, 8> inputs(group_.size());
  for (int64_t at = begin; at < end;) {
    const int64_t part = AwaitPart(job, at, end - at);
    inputs[group_.rank()] = job.own + at;
    for (int peer : group_.ring_peers())
      inputs[peer] = group_.ring(peer, GlooLane::kCollective).Front(part).data();
    for (int peer : group_.tcp_peers()) {
      inputs[peer] = group_.staging(peer) + place * TcpChannel::kBlock + (at - begin);
    }
    void* const to = job.output + at;
    ReduceInOrder(dtype_, op_, inputs, {&to, 1}, part / ItemSize(dtype_));
    for (int peer : group_.ring_peers()) group_.ring(peer, GlooLane::kCollective).Consume(part);
    at += part;
  }
}

void ReduceStream::Reduce(GlooWait& wait, const char* own, char* output, int64_t num_bytes) {
  ReduceBlock({wait, own, output, num_bytes, /*wait_until_sent=*/false}, 0, num_bytes);
}

void ReduceStream::ExpectWhole(int64_t num_bytes) {
  for (int i = 0; i < kAhead; ++i) Expect(std::min(TcpChannel::kBlock, num_bytes - i * TcpChannel::kBlock));
}

void ReduceStream::ReduceWhole(GlooWait& wait, const char* own, char* output, int64_t num_bytes,
                               bool wait_until_sent) {
  const Job job{wait, own, output, num_bytes, wait_until_sent};
  if (group_.tcp_peers().empty()) return ReduceBlock(job, 0, num_bytes);
  for (int peer : group_.tcp_peers()) {
    const PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
    if (!wait_until_sent) break;
    group_.AwaitTcpSends(
        peer, GlooLane::kCollective, [&] { return !channel.sending(); }, wait);
  }
  constexpr int64_t kBlock = TcpChannel::kBlock;
  for (int64_t begin = 0; begin < num_bytes; begin += kBlock) {
    ReduceBlock(job, begin, std::min(num_bytes, begin + kBlock));
    Expect(std::min(kBlock, num_bytes - begin - kAhead * kBlock));
  }
}

}  // namespace weft
