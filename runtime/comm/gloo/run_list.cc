#include "runtime/comm/gloo/run_list.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/gloo/all_reduce_steps.h"
#include "runtime/comm/gloo/collective_pieces.h"
#include "runtime/comm/gloo/header_exchange.h"
#include "runtime/comm/gloo/reduce_stream.h"

namespace weft {
namespace {

// Blocks that are asked for ahead: more and smaller ones than of a single collective, since parts end within
// them and a link must not run dry at the end of each.
constexpr int kAhead = 4;

class ListRun {
 public:
  ListRun(GlooGroup& group, const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls)
      : group_(group), list_(list), calls_(calls) {}

  void Execute();

 private:
  static std::vector<CollectivePieces> PiecesOf(const GlooGroup& group,
                                                absl::Span<const CollectiveCall> calls) {
    std::vector<CollectivePieces> parts;
    parts.reserve(calls.size());
    for (const CollectiveCall& call : calls) parts.emplace_back(group, call, /*in_list=*/true);
    return parts;
  }

  PeerChannel& channel(int peer) const { return group_.channel(peer, GlooLane::kCollective); }
  template <class Visit>
  void ForEachPeer(const Visit& visit) const {
    for (int i = 1; i < group_.size(); ++i) visit((group_.rank() + i) % group_.size());
  }

  void Post();
  void SendParts(int peer);
  void ReceiveParts(int peer);
  void CopyOwn();
  void Reduce(GlooWait& wait);
  bool reduces() const { return list_.kind != CollectiveKind::kAllGather; }

  // What this member reduces of every input of `part`, whole.
  int64_t ReducedBytes(const CollectivePieces& part) const {
    return list_.kind == CollectiveKind::kReduceScatter ? part.counts[part.me] * part.item : part.bytes;
  }

  GlooGroup& group_;
  const CollectiveDescriptor& list_;
  const absl::Span<const CollectiveCall> calls_;
  const std::vector<CollectivePieces> parts_ = PiecesOf(group_, calls_);
  const bool in_steps_ = parts_[0].in_steps;  // of all parts or of none
  HeaderExchange headers_ = HeaderExchange(group_);
  ReduceStream stream_ = ReduceStream(group_, list_.dtype, list_.op, kAhead);
  AllReduceSteps steps_ = AllReduceSteps(
      group_, in_steps_ ? absl::MakeConstSpan(parts_) : absl::Span<const CollectivePieces>(), stream_);
};

// What arrives is asked for before anything is sent: a message that is asked for late costs a way there and
// back.
void ListRun::Post() {
  const GlooEventThread::Patience while_posting(group_.event_thread());
  group_.header_to(group_.rank()).Set(list_, {}, calls_[0].sequence);
  ForEachPeer([&](int peer) {
    GlooHeader& header = group_.header_to(peer);
    header.Set(list_, {}, calls_[0].sequence);
    channel(peer).Send(header.bytes(), group_.HeaderBytes(header, peer));
  });
  headers_.Expect();
  if (in_steps_) return steps_.Post();
  if (reduces()) {
    std::vector<int64_t> wholes;
    for (const CollectivePieces& part : parts_) wholes.push_back(ReducedBytes(part));
    stream_.ExpectWholes(wholes);
  } else {
    for (int peer : group_.tcp_peers()) ReceiveParts(peer);
  }
  ForEachPeer([&](int peer) { SendParts(peer); });
}

// Of what is reduced: in the stream's blocks.
void ListRun::SendParts(int peer) {
  for (const CollectivePieces& part : parts_) {
    const Piece piece = part.Outgoing(peer);
    const int64_t block = reduces() ? stream_.block_bytes() : std::max<int64_t>(piece.num_bytes, 1);
    for (int64_t begin = 0; begin < piece.num_bytes; begin += block) {
      channel(peer).Send(piece.data + begin, std::min(block, piece.num_bytes - begin));
    }
  }
}

// Of pieces that go to a place of their own.
void ListRun::ReceiveParts(int peer) {
  if (reduces()) return;
  for (const CollectivePieces& part : parts_) {
    const Piece piece = part.Incoming(peer);
    channel(peer).Receive(piece.data, piece.num_bytes);
  }
}

void ListRun::CopyOwn() {
  for (const CollectivePieces& part : parts_) {
    const Piece own = part.Own();
    char* const place = part.output + part.OwnOffset();
    if (own.num_bytes > 0 && own.data != place) std::memcpy(place, own.data, own.num_bytes);
  }
}

void ListRun::Reduce(GlooWait& wait) {
  if (in_steps_) return steps_.Run(wait);
  const bool scatters = list_.kind == CollectiveKind::kReduceScatter;
  int64_t num_behind = 0;  // bytes that are sent to each peer behind a part
  for (const CollectivePieces& part : parts_) num_behind += part.bytes;
  for (const CollectivePieces& part : parts_) {
    num_behind -= part.bytes;
    const char* const own = scatters ? part.input + part.Begin(part.me) : part.input;
    const bool in_place = !scatters && part.input == part.output;
    stream_.ReduceWhole({.wait = wait,
                         .own = own,
                         .output = part.output,
                         .num_bytes = ReducedBytes(part),
                         .wait_until_sent = in_place,
                         .num_behind = num_behind});
  }
}

void ListRun::Execute() {
  constexpr int64_t kPatientBytes = 4 << 20;  // as of a single collective
  group_.ThrowIfFailed();
  group_.UseLanes(GlooLane::kCollective, GlooLane::kCollective, calls_[0].turn);
  const auto what = [&] {
    return absl::StrCat(group_.Where(list_.kind, calls_[0].sequence), ", ", list_.ToString());
  };
  // First those that have not entered; when all have, those that still owe something.
  const auto missing = [&] {
    std::vector<int> members;
    const bool all_have_come = headers_.AllHaveCome();
    for (int peer = 0; peer < group_.size(); ++peer) {
      if (peer == group_.rank()) continue;
      const bool owes = all_have_come ? group_.IsBusy(peer) || stream_.Awaits(peer) : !headers_.HasCome(peer);
      if (owes) members.push_back(peer);
    }
    return members;
  };
  GlooWait wait{calls_[0].timeout, what, missing};
  int64_t num_bytes = 0;
  for (const CollectiveCall& call : calls_)
    num_bytes += std::max(call.input.num_bytes(), call.output.num_bytes());
  const GlooEventThread::Patience throughout(num_bytes >= kPatientBytes ? group_.event_thread() : nullptr);
  Post();
  headers_.Await(wait, [&](int peer) { ReceiveParts(peer); });
  NoteAllEntered(calls_[0]);
  headers_.Agree();
  if (reduces()) {
    Reduce(wait);
  } else {
    CopyOwn();
  }
  group_.AwaitIdle(wait);
  group_.TakeHeaders();
}

}  // namespace

void RunGlooList(GlooGroup& group, const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls) {
  ListRun(group, list, calls).Execute();
}

}  // namespace weft
