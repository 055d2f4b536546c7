#include "runtime/comm/gloo/all_reduce_steps.h"

namespace weft {
namespace {

// A piece that is reduced by TCP goes in two blocks at least, so that one is on its way while the other is
// reduced, unless they would be smaller than this.
constexpr int64_t kLeastBlock = 128 << 10;

}  // namespace

AllReduceSteps::AllReduceSteps(GlooGroup& group, absl::Span<const CollectivePieces> parts,
                               ReduceStream& stream)
    : group_(group), stream_(stream) {
  for (const CollectivePieces& part : parts) {
    const int64_t largest = SliceOf(part.bytes, 0, part.size).end;
    const int64_t half = WholeLines((largest + 1) / 2);
    const int64_t length = group.has_tcp() ? std::clamp(half, kLeastBlock, stream.block_bytes()) : kRingChunk;
    for (int64_t begin = 0; begin < largest; begin += length) steps_.push_back({&part, begin, length});
  }
}

void AllReduceSteps::Expect(size_t step) {
  if (step >= steps_.size()) return;
  const Slice mine = At(group_.rank(), step);
  stream_.Expect(mine.end - mine.begin);
}

void AllReduceSteps::SendInput(int peer, size_t step) {
  if (step >= steps_.size()) return;
  const Slice theirs = At(peer, step);
  channel(peer).Send(steps_[step].part->input + theirs.begin, theirs.end - theirs.begin);
}

void AllReduceSteps::SendResult(int peer, size_t step) {
  const Slice mine = At(group_.rank(), step);
  channel(peer).Send(steps_[step].part->output + mine.begin, mine.end - mine.begin);
}

void AllReduceSteps::ReceiveResult(int peer, size_t step) {
  if (step >= steps_.size()) return;
  const Slice theirs = At(peer, step);
  channel(peer).Receive(steps_[step].part->output + theirs.begin, theirs.end - theirs.begin);
}

// By TCP a message that is asked for late costs a way there and back, so everything is asked for ahead. To
// each peer go, from each: the inputs of the first steps, as many as the stream is ahead, and then of every step
// its result and the input of the step that is so far behind it. A result comes to the place of an input that
// has been sent to its maker, and to nobody else, before.
void AllReduceSteps::Post() {
  const size_t ahead = stream_.ahead();
  for (size_t step = 0; step < ahead; ++step) Expect(step);
  for (int peer : group_.tcp_peers()) ReceiveResult(peer, 0);
  ForEachPeer([&](int peer) {
    if (group_.by_memory(peer)) return;
    for (size_t step = 0; step < ahead; ++step) SendInput(peer, step);
  });
}

// The result of `step`, and what goes by TCP ahead.
void AllReduceSteps::PostBehind(size_t step) {
  const size_t ahead = stream_.ahead();
  const GlooEventThread::Patience while_posting(group_.event_thread());
  Expect(step + ahead);
  for (int peer : group_.tcp_peers()) ReceiveResult(peer, step + 1);
  ForEachPeer([&](int peer) {
    SendResult(peer, step);
    if (group_.by_memory(peer)) {
      ReceiveResult(peer, step);
    } else {
      SendInput(peer, step + ahead);
    }
  });
}

void AllReduceSteps::Run(GlooWait& wait) {
  for (size_t step = 0; step < steps_.size(); ++step) {
    for (int peer : group_.ring_peers()) SendInput(peer, step);
    const Slice mine = At(group_.rank(), step);
    const CollectivePieces& part = *steps_[step].part;
    stream_.Reduce(wait, part.input + mine.begin, part.output + mine.begin, mine.end - mine.begin);
    PostBehind(step);
    group_.AwaitRings(wait);
  }
}

}  // namespace weft
