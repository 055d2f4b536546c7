#include "runtime/comm/gloo/run_collective.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/gloo/collective_pieces.h"
#include "runtime/comm/gloo/reduce_stream.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

// What a member reduces or passes on at a time: by memory it stays in the cache, by TCP it outweighs a step.
constexpr int64_t kRingChunk = 128 << 10;
constexpr int64_t kTcpChunk = 16 << 20;
// A piece that is reduced by TCP goes in two blocks at least, so that one is on its way while the other is
// reduced, unless they would be smaller than this.
constexpr int64_t kLeastBlock = 128 << 10;
// From here on Gloo's thread is patient from begin to end: what it may wait for a core among threads that
// compute is little then, beside what it loses where several ranks of one host take each other's cores.
constexpr int64_t kPatientBytes = 4 << 20;

class Run {
 public:
  Run(GlooGroup& group, const CollectiveCall& call) : group_(group), call_(call), pieces_(group, call) {}

  void Execute();

 private:
  static bool FitsHeader(int64_t num_bytes) { return num_bytes <= GlooHeader::kMostData; }

  // Calls `visit` for every peer, beginning behind this member: members do not all send to the same one.
  template <class Visit>
  void ForEachPeer(const Visit& visit) const {
    for (int i = 1; i < pieces_.size; ++i) visit((pieces_.me + i) % pieces_.size);
  }
  PeerChannel& channel(int peer) const { return group_.channel(peer, GlooLane::kCollective); }

  void Post();
  void AwaitHeaders(GlooWait& wait);
  bool HeaderFromRing(int peer);
  bool HasHeader(int peer) const;
  void ReceiveData(int peer);
  void Agree();
  [[noreturn]] void Disagree(int a, int b, const std::string& what);
  const GlooHeader& HeaderOf(int member) const;

  void Share(GlooWait& wait);
  void Reduce(GlooWait& wait);
  void PostStepsByTcp();
  void PostAfterStep(int64_t step);
  void AllReduceInSteps(GlooWait& wait);
  void BroadcastInSteps(GlooWait& wait);
  bool IsLong() const {
    const auto bytes = [](const Tensor& tensor) { return tensor.defined() ? tensor.num_bytes() : 0; };
    return std::max(bytes(call_.input), bytes(call_.output)) >= kPatientBytes;
  }

  // The slice of the whole that `member` of `size` makes or passes on: whole lines, but for the last.
  struct Slice {
    int64_t begin;
    int64_t end;
  };
  Slice SliceOf(int member, int size) const {
    const int64_t chunk = WholeLines((pieces_.bytes + size - 1) / size);
    return {std::min(pieces_.bytes, chunk * member), std::min(pieces_.bytes, chunk * (member + 1))};
  }
  static Slice Part(const Slice& slice, int64_t begin, int64_t length) {
    return {std::min(slice.end, slice.begin + begin), std::min(slice.end, slice.begin + begin + length)};
  }
  int64_t ChunkBytes() const { return group_.has_tcp() ? kTcpChunk : kRingChunk; }

  // What is sent in one step of a large all-reduce of the slice of `member`.
  int64_t StepBytes() const {
    if (!group_.has_tcp()) return kRingChunk;
    const int64_t half = WholeLines((SliceOf(0, pieces_.size).end + 1) / 2);
    return std::clamp(half, kLeastBlock, TcpChannel::kBlock);
  }
  Slice Step(int member, int64_t step) const {
    return Part(SliceOf(member, pieces_.size), step * StepBytes(), StepBytes());
  }
  void SendStep(int to, int of, const char* from, int64_t step) {
    const Slice part = Step(of, step);
    channel(to).Send(from + part.begin, part.end - part.begin);
  }
  void ReceiveResult(int peer, int64_t step) {
    const Slice part = Step(peer, step);
    channel(peer).Receive(pieces_.output + part.begin, part.end - part.begin);
  }
  void ExpectStep(int64_t step) {
    const Slice part = Step(pieces_.me, step);
    stream_.Expect(part.end - part.begin);
  }

  // The bytes that this member reduces of every input, whole.
  int64_t ReducedBytes() const;

  GlooGroup& group_;
  const CollectiveCall& call_;
  const CollectivePieces pieces_;
  ReduceStream stream_ = ReduceStream(group_, call_.descriptor.dtype, call_.descriptor.op);
  int num_headers_ = 0;  // that have come
  // Of ring peers: 0: the first line is awaited, 1: the rest, 2: it has come.
  absl::InlinedVector<char, 16> header_stage_ = absl::InlinedVector<char, 16>(pieces_.size);
};

// Headers, and data behind them that need not wait for anything.
void Run::Post() {
  const GlooEventThread::Patience while_posting(group_.event_thread());
  GlooHeader& own = group_.header_to(pieces_.me);
  own.Set(call_.descriptor, call_.receive_counts, call_.sequence);
  ForEachPeer([&](int peer) {
    GlooHeader& header = group_.header_to(peer);
    header.Set(call_.descriptor, call_.receive_counts, call_.sequence);
    const Piece piece = pieces_.Outgoing(peer);
    const bool inside = FitsHeader(piece.num_bytes);
    if (inside) header.SetData(piece.data, piece.num_bytes);
    channel(peer).Send(header.bytes(), group_.HeaderBytes(header, peer));
    if (!inside) channel(peer).Send(piece.data, piece.num_bytes);
  });
  for (int peer : group_.ring_peers()) {
    channel(peer).Receive(group_.header_from(peer).bytes(), group_.header_from(peer).line_bytes());
  }
  group_.ExpectHeaders();
  for (int peer : group_.tcp_peers()) ReceiveData(peer);
  if (pieces_.in_steps && pieces_.kind == CollectiveKind::kAllReduce) {
    PostStepsByTcp();
  } else if (!FitsHeader(ReducedBytes())) {
    stream_.ExpectWhole(ReducedBytes());
  }
}

// Of pieces that go to a place of their own.
void Run::ReceiveData(int peer) {
  const Piece piece = pieces_.Incoming(peer);
  if (piece.data != nullptr && !FitsHeader(piece.num_bytes))
    channel(peer).Receive(piece.data, piece.num_bytes);
}

// Takes the next step with what has come; true once the header has.
bool Run::HeaderFromRing(int peer) {
  GlooHeader& header = group_.header_from(peer);
  char& stage = header_stage_[peer];
  const auto is_there = [&] { return channel(peer).num_received() == channel(peer).num_receives(); };
  if (stage == 0 && is_there()) {
    const int64_t rest = header.num_bytes() - header.line_bytes();
    channel(peer).Receive(header.bytes() + header.line_bytes(), rest);
    stage = 1;
    if (rest > 0) group_.Pump();
  }
  if (stage == 1 && is_there()) {
    stage = 2;
    ++num_headers_;
    ReceiveData(peer);
  }
  return stage == 2;
}

void Run::AwaitHeaders(GlooWait& wait) {
  if (!group_.ring_peers().empty()) {
    const int num_rings = static_cast<int>(group_.ring_peers().size());
    group_.Await(
        [&] {
          for (int peer : group_.ring_peers()) {
            if (header_stage_[peer] != 2) HeaderFromRing(peer);
          }
          return num_headers_ == num_rings;
        },
        wait);
  }
  for (int peer : group_.tcp_peers()) {
    group_.AwaitTcpReceives(
        peer, GlooLane::kCollective, [&] { return HasHeader(peer); }, wait);
    ++num_headers_;
  }
}

bool Run::HasHeader(int peer) const {
  return group_.by_memory(peer) ? header_stage_[peer] == 2 : group_.HasTcpHeader(peer);
}

const GlooHeader& Run::HeaderOf(int member) const {
  return member == pieces_.me ? group_.header_to(pieces_.me) : group_.header_from(member);
}

void Run::Disagree(int a, int b, const std::string& what) {
  const auto called = [&](int member) {
    return absl::StrCat("rank ", group_.ranks()[member], " called ",
                        HeaderOf(member).Descriptor().ToString());
  };
  group_.Fail(absl::StatusCode::kInvalidArgument,
              absl::StrCat(group_.Where(HeaderOf(a).Descriptor().kind, HeaderOf(a).sequence()), ": ",
                           called(a), ", ", called(b), what));
  group_.Leave();
}

// All members come to the same verdict, since all look at the same headers in the same order.
void Run::Agree() {
  const GlooHeader& first = HeaderOf(0);
  for (int peer = 1; peer < pieces_.size; ++peer) {
    if (!first.AgreesWith(HeaderOf(peer))) Disagree(0, peer, "");
  }
  if (pieces_.kind != CollectiveKind::kAllToAll) return;
  for (int from = 0; from < pieces_.size; ++from) {
    for (int to = 0; to < pieces_.size; ++to) {
      const int64_t sent = HeaderOf(from).counts()[to];
      const int64_t expected = HeaderOf(to).receive_counts()[from];
      if (sent == expected) continue;
      Disagree(from, to,
               absl::StrCat(": rank ", group_.ranks()[from], " sends ", sent, " elements to rank ",
                            group_.ranks()[to], ", which expects ", expected));
    }
  }
}

int64_t Run::ReducedBytes() const {
  switch (pieces_.kind) {
    case CollectiveKind::kAllReduce:
      return pieces_.in_steps ? 0 : pieces_.bytes;
    case CollectiveKind::kReduceScatter:
      return pieces_.counts[pieces_.me] * pieces_.item;
    case CollectiveKind::kReduce:
      return pieces_.me == pieces_.root ? pieces_.bytes : 0;
    default:
      return 0;
  }
}

// The whole, or this member's piece, of all inputs, which their owners have sent here.
void Run::Reduce(GlooWait& wait) {
  const bool scatters = pieces_.kind == CollectiveKind::kReduceScatter;
  const char* const own = scatters ? pieces_.input + pieces_.Begin(pieces_.me) : pieces_.input;
  const int64_t num_bytes = ReducedBytes();
  if (!FitsHeader(num_bytes) && pieces_.size > 1) {
    const bool in_place = pieces_.kind == CollectiveKind::kAllReduce && pieces_.input == pieces_.output;
    return stream_.ReduceWhole(wait, own, pieces_.output, num_bytes, in_place);
  }
  absl::InlinedVector<const void*, 8> inputs(pieces_.size);
  for (int peer = 0; peer < pieces_.size; ++peer)
    inputs[peer] = peer == pieces_.me ? own : HeaderOf(peer).data();
  void* const to = pieces_.output;
  ReduceInOrder(call_.descriptor.dtype, call_.descriptor.op, inputs, {&to, 1}, num_bytes / pieces_.item);
}

// By TCP a message that is asked for late costs a way there and back, so everything is asked for ahead. To
// each peer go, from each: the inputs of the first kAhead steps, and then of every step its result and the
// input of the step that is kAhead behind it. A result comes to the place of an input that has been sent to
// its maker, and to nobody else, before.
void Run::PostStepsByTcp() {
  for (int step = 0; step < ReduceStream::kAhead; ++step) ExpectStep(step);
  for (int peer : group_.tcp_peers()) ReceiveResult(peer, 0);
  ForEachPeer([&](int peer) {
    if (group_.by_memory(peer)) return;
    for (int step = 0; step < ReduceStream::kAhead; ++step) SendStep(peer, peer, pieces_.input, step);
  });
}

// The result of `step`, and what goes by TCP ahead.
void Run::PostAfterStep(int64_t step) {
  constexpr int kAhead = ReduceStream::kAhead;
  const GlooEventThread::Patience while_posting(group_.event_thread());
  ExpectStep(step + kAhead);
  for (int peer : group_.tcp_peers()) ReceiveResult(peer, step + 1);
  ForEachPeer([&](int peer) {
    SendStep(peer, pieces_.me, pieces_.output, step);
    if (group_.by_memory(peer)) {
      ReceiveResult(peer, step);
    } else {
      SendStep(peer, peer, pieces_.input, step + kAhead);
    }
  });
}

// Step by step: everybody sends everybody its input of their slices, reduces its own slice and sends the
// result to all while it is in the cache.
void Run::AllReduceInSteps(GlooWait& wait) {
  const int64_t num_steps = (SliceOf(0, pieces_.size).end + StepBytes() - 1) / StepBytes();
  for (int64_t step = 0; step < num_steps; ++step) {
    for (int peer : group_.ring_peers()) SendStep(peer, peer, pieces_.input, step);
    const Slice part = Step(pieces_.me, step);
    stream_.Reduce(wait, pieces_.input + part.begin, pieces_.output + part.begin, part.end - part.begin);
    PostAfterStep(step);
    group_.AwaitRings(wait);
  }
}

// Chunk by chunk: the root sends each receiver its slice, and receivers pass theirs on to the others.
void Run::BroadcastInSteps(GlooWait& wait) {
  const int num_receivers = pieces_.size - 1;
  const auto slice_of = [&](int member) {
    return SliceOf(member > pieces_.root ? member - 1 : member, num_receivers);
  };
  const int64_t chunk = ChunkBytes();
  for (int64_t begin = 0; begin < SliceOf(0, num_receivers).end; begin += chunk) {
    if (pieces_.me == pieces_.root) {
      ForEachPeer([&](int peer) {
        const Slice part = Part(slice_of(peer), begin, chunk);
        channel(peer).Send(pieces_.input + part.begin, part.end - part.begin);
      });
    } else {
      const Slice mine = Part(slice_of(pieces_.me), begin, chunk);
      channel(pieces_.root).Receive(pieces_.output + mine.begin, mine.end - mine.begin);
      group_.AwaitIdle(wait);
      ForEachPeer([&](int peer) {
        if (peer == pieces_.root) return;
        const Slice theirs = Part(slice_of(peer), begin, chunk);
        channel(peer).Send(pieces_.output + mine.begin, mine.end - mine.begin);
        channel(peer).Receive(pieces_.output + theirs.begin, theirs.end - theirs.begin);
      });
    }
    group_.AwaitIdle(wait);
  }
}

// What is left to do when all agree.
void Run::Share(GlooWait& wait) {
  const Piece own = pieces_.Own();
  if (own.num_bytes > 0 && own.data != pieces_.output + pieces_.OwnOffset()) {
    std::memcpy(pieces_.output + pieces_.OwnOffset(), own.data, own.num_bytes);
  }
  ForEachPeer([&](int peer) {
    const Piece piece = pieces_.Incoming(peer);
    if (piece.data != nullptr && piece.num_bytes > 0 && FitsHeader(piece.num_bytes)) {
      std::memcpy(piece.data, HeaderOf(peer).data(), piece.num_bytes);
    }
  });
  if (pieces_.in_steps) {
    return pieces_.kind == CollectiveKind::kAllReduce ? AllReduceInSteps(wait) : BroadcastInSteps(wait);
  }
  const bool reduces = pieces_.kind == CollectiveKind::kAllReduce ||
                       pieces_.kind == CollectiveKind::kReduceScatter ||
                       (pieces_.kind == CollectiveKind::kReduce && pieces_.me == pieces_.root);
  if (reduces) Reduce(wait);
}

void Run::Execute() {
  group_.ThrowIfFailed();
  group_.UseLanes(GlooLane::kCollective, GlooLane::kCollective);
  const auto what = [&] {
    return absl::StrCat(group_.Where(pieces_.kind, call_.sequence), ", ", call_.descriptor.ToString());
  };
  // First those that have not entered; when all have, those that still owe something.
  const auto missing = [&] {
    std::vector<int> members;
    for (int peer = 0; peer < pieces_.size; ++peer) {
      if (peer == pieces_.me) continue;
      const bool owes =
          num_headers_ < pieces_.size - 1 ? !HasHeader(peer) : group_.IsBusy(peer) || stream_.Awaits(peer);
      if (owes) members.push_back(peer);
    }
    return members;
  };
  GlooWait wait{call_.timeout, what, missing};
  const GlooEventThread::Patience throughout(IsLong() ? group_.event_thread() : nullptr);
  Post();
  AwaitHeaders(wait);
  NoteAllEntered(call_);
  Agree();
  Share(wait);
  group_.AwaitIdle(wait);
  group_.TakeHeaders();
}

}  // namespace

void RunGlooCollective(GlooGroup& group, const CollectiveCall& call) { Run(group, call).Execute(); }

}  // namespace weft
