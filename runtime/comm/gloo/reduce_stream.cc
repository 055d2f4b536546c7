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
  RingChannel& ring = group_.ring(peer, Lane::kCollective);
  const absl::Span<const char> front = ring.Front(wanted_);
  return !ring.IsWhole(front, wanted_) && static_cast<int64_t>(front.size()) < std::min(wanted_, kLeastPart);
}

// Blocks lie in the two halves of the staging memory in turn.
void ReduceStream::ExpectBlock(const Job& job, int64_t begin) {
  const int64_t length = std::min(TcpChannel::kBlock, job.num_bytes - begin);
  if (length <= 0) return;
  for (int peer : group_.tcp_peers()) {
    std::vector<char>& blocks = staging_[peer];
    if (blocks.empty()) blocks.resize(std::min(job.num_bytes, 2 * TcpChannel::kBlock));
    group_.channel(peer, Lane::kCollective).Receive(&blocks[begin % (2 * TcpChannel::kBlock)], length);
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
          RingChannel& ring = group_.ring(peer, Lane::kCollective);
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
  absl::InlinedVector<const void*, 8> inputs(group_.size());
  for (int64_t at = begin; at < end;) {
    const int64_t part = AwaitPart(job, at, end - at);
    inputs[group_.rank()] = job.own + at;
    for (int peer : group_.ring_peers())
      inputs[peer] = group_.ring(peer, Lane::kCollective).Front(part).data();
    for (int peer : group_.tcp_peers()) inputs[peer] = &staging_[peer][at % (2 * TcpChannel::kBlock)];
    void* const to = job.output + at;
    ReduceInOrder(dtype_, op_, inputs, {&to, 1}, part / ItemSize(dtype_));
    for (int peer : group_.ring_peers()) group_.ring(peer, Lane::kCollective).Consume(part);
    at += part;
  }
}

void ReduceStream::Run(GlooWait& wait, const char* own, char* output, int64_t num_bytes,
                       bool wait_until_sent) {
  if (num_bytes == 0) return;
  const Job job{wait, own, output, num_bytes, wait_until_sent};
  if (group_.tcp_peers().empty()) return ReduceBlock(job, 0, num_bytes);
  constexpr int64_t kBlock = TcpChannel::kBlock;
  staging_.resize(group_.size());
  ExpectBlock(job, 0);
  ExpectBlock(job, kBlock);
  // A send is through when its receiver has asked for it, so all ask before any waits.
  for (int peer : group_.tcp_peers()) {
    const PeerChannel& channel = group_.channel(peer, Lane::kCollective);
    if (!wait_until_sent) break;
    group_.AwaitTcpSends(
        peer, Lane::kCollective, [&] { return !channel.sending(); }, wait);
  }
  for (int64_t begin = 0; begin < num_bytes; begin += kBlock) {
    // Blocks are messages of their own: this one is through when one is pending, the next, if there is one.
    const int64_t num_pending = num_bytes - begin > kBlock ? 1 : 0;
    for (int peer : group_.tcp_peers()) {
      const PeerChannel& channel = group_.channel(peer, Lane::kCollective);
      group_.AwaitTcpReceives(
          peer, Lane::kCollective,
          [&] { return channel.num_receives() - channel.num_received() <= num_pending; }, wait);
    }
    ReduceBlock(job, begin, std::min(num_bytes, begin + kBlock));
    ExpectBlock(job, begin + 2 * kBlock);
  }
}

}  // namespace weft
