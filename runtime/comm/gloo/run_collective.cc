#include "runtime/comm/gloo/run_collective.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/gloo/all_reduce_steps.h"
#include "runtime/comm/gloo/collective_pieces.h"
#include "runtime/comm/gloo/header_exchange.h"
#include "runtime/comm/gloo/reduce_stream.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

// What a member passes on at a time by TCP: it outweighs a step.
constexpr int64_t kTcpChunk = 16 << 20;
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
  void ReceiveData(int peer);

  void Share(GlooWait& wait);
  void Reduce(GlooWait& wait);
  void BroadcastInSteps(GlooWait& wait);
  bool IsLong() const {
    const auto bytes = [](const Tensor& tensor) { return tensor.defined() ? tensor.num_bytes() : 0; };
    return std::max(bytes(call_.input), bytes(call_.output)) >= kPatientBytes;
  }

  bool in_steps() const { return pieces_.in_steps && pieces_.kind == CollectiveKind::kAllReduce; }
  int64_t ChunkBytes() const { return group_.has_tcp() ? kTcpChunk : kRingChunk; }

  // The bytes that this member reduces of every input, whole.
  int64_t ReducedBytes() const;

  GlooGroup& group_;
  const CollectiveCall& call_;
  const CollectivePieces pieces_;
  ReduceStream stream_ = ReduceStream(group_, call_.descriptor.dtype, call_.descriptor.op);
  HeaderExchange headers_ = HeaderExchange(group_);
  AllReduceSteps steps_ = AllReduceSteps(
      group_, in_steps() ? absl::MakeConstSpan(&pieces_, 1) : absl::Span<const CollectivePieces>(), stream_);
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
  headers_.Expect();
  for (int peer : group_.tcp_peers()) ReceiveData(peer);
  if (in_steps()) {
    steps_.Post();
  } else if (!FitsHeader(ReducedBytes())) {
    stream_.ExpectWholes({ReducedBytes()});
  }
}

// Of pieces that go to a place of their own.
void Run::ReceiveData(int peer) {
  const Piece piece = pieces_.Incoming(peer);
  if (piece.data != nullptr && !FitsHeader(piece.num_bytes))
    channel(peer).Receive(piece.data, piece.num_bytes);
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
    return stream_.ReduceWhole({wait, own, pieces_.output, num_bytes, in_place});
  }
  absl::InlinedVector<const void*, 8> inputs(pieces_.size);
  for (int peer = 0; peer < pieces_.size; ++peer)
    inputs[peer] = peer == pieces_.me ? own : group_.header_from(peer).data();
  void* const to = pieces_.output;
  ReduceInOrder(call_.descriptor.dtype, call_.descriptor.op, inputs, {&to, 1}, num_bytes / pieces_.item);
}

// Chunk by chunk: the root sends each receiver its slice, and receivers pass theirs on to the others.
void Run::BroadcastInSteps(GlooWait& wait) {
  const int num_receivers = pieces_.size - 1;
  const auto slice_of = [&](int member) {
    return SliceOf(pieces_.bytes, member > pieces_.root ? member - 1 : member, num_receivers);
  };
  const int64_t chunk = ChunkBytes();
  for (int64_t begin = 0; begin < SliceOf(pieces_.bytes, 0, num_receivers).end; begin += chunk) {
    if (group_.has_tcp()) group_.HoldTurn();
    if (pieces_.me == pieces_.root) {
      ForEachPeer([&](int peer) {
        const Slice part = PartOf(slice_of(peer), begin, chunk);
        channel(peer).Send(pieces_.input + part.begin, part.end - part.begin);
      });
    } else {
      const Slice mine = PartOf(slice_of(pieces_.me), begin, chunk);
      channel(pieces_.root).Receive(pieces_.output + mine.begin, mine.end - mine.begin);
      group_.AwaitIdle(wait);
      ForEachPeer([&](int peer) {
        if (peer == pieces_.root) return;
        const Slice theirs = PartOf(slice_of(peer), begin, chunk);
        channel(peer).Send(pieces_.output + mine.begin, mine.end - mine.begin);
        channel(peer).Receive(pieces_.output + theirs.begin, theirs.end - theirs.begin);
      });
    }
    group_.AwaitIdle(wait);
    if (group_.has_tcp()) group_.FillTurn(chunk);
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
      std::memcpy(piece.data, group_.header_from(peer).data(), piece.num_bytes);
    }
  });
  if (pieces_.in_steps) {
    return in_steps() ? steps_.Run(wait) : BroadcastInSteps(wait);
  }
  const bool reduces = pieces_.kind == CollectiveKind::kAllReduce ||
                       pieces_.kind == CollectiveKind::kReduceScatter ||
                       (pieces_.kind == CollectiveKind::kReduce && pieces_.me == pieces_.root);
  if (reduces) Reduce(wait);
}

void Run::Execute() {
  group_.ThrowIfFailed();
  group_.UseLanes(GlooLane::kCollective, GlooLane::kCollective, call_.turn);
  const auto what = [&] {
    return absl::StrCat(group_.Where(pieces_.kind, call_.sequence), ", ", call_.descriptor.ToString());
  };
  // First those that have not entered; when all have, those that still owe something.
  const auto missing = [&] {
    std::vector<int> members;
    for (int peer = 0; peer < pieces_.size; ++peer) {
      if (peer == pieces_.me) continue;
      const bool owes =
          headers_.AllHaveCome() ? group_.IsBusy(peer) || stream_.Awaits(peer) : !headers_.HasCome(peer);
      if (owes) members.push_back(peer);
    }
    return members;
  };
  GlooWait wait{call_.timeout, what, missing};
  const GlooEventThread::Patience throughout(IsLong() ? group_.event_thread() : nullptr);
  Post();
  headers_.Await(wait, [&](int peer) { ReceiveData(peer); });
  NoteAllEntered(call_);
  headers_.Agree();
  Share(wait);
  group_.AwaitIdle(wait);
  group_.TakeHeaders();
}

}  // namespace

void RunGlooCollective(GlooGroup& group, const CollectiveCall& call) { Run(group, call).Execute(); }

}  // namespace weft
