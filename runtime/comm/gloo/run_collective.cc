#include "runtime/comm/gloo/run_collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/gloo/reduce_stream.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

// Up to here everybody sends a whole all-reduce to everybody: one step instead of two.
constexpr int64_t kWholeBytes = 32 << 10;
// From here on the receivers of a broadcast pass pieces on.
constexpr int64_t kPassedOnBytes = 256 << 10;
// What a member reduces or passes on at a time: by memory it stays in the cache, by TCP it outweighs a step.
constexpr int64_t kRingChunk = 128 << 10;
constexpr int64_t kTcpChunk = 16 << 20;

template <class Counts>
int64_t Offset(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

struct Piece {
  char* data = nullptr;
  int64_t num_bytes = 0;
};

class Run {
 public:
  Run(GlooGroup& group, const GlooCall& call)
      : group_(group),
        call_(call),
        kind_(call.descriptor.kind),
        counts_(call.descriptor.counts),
        root_(call.descriptor.root),
        me_(group.rank()),
        size_(group.size()),
        item_(ItemSize(call.descriptor.dtype)),
        input_(call.input.defined() ? static_cast<char*>(call.input.data()) : nullptr),
        output_(call.output.defined() ? static_cast<char*>(call.output.data()) : nullptr) {
    if (HasOneCount(kind_)) bytes_ = counts_[0] * item_;
    if (kind_ == CollectiveKind::kAllReduce) {
      // Of two by memory, each reads the other's whole at the price of passing halves back and forth.
      in_steps_ = size_ > 1 && bytes_ * (size_ - 1) > kWholeBytes && (size_ > 2 || group.has_tcp());
    } else if (kind_ == CollectiveKind::kBroadcast) {
      in_steps_ = size_ > 2 && bytes_ > kPassedOnBytes;
    }
  }

  int64_t Execute();

 private:
  Piece Outgoing(int peer) const;
  Piece Incoming(int peer) const;  // no data: it is to be reduced
  Piece Own() const;               // this member's piece of its own output: where it comes from
  int64_t OwnOffset() const;       // and where in the output it belongs
  static bool FitsHeader(int64_t num_bytes) { return num_bytes <= GlooHeader::kMostData; }

  // Calls `visit` for every peer, beginning behind this member: members do not all send to the same one.
  template <class Visit>
  void ForEachPeer(const Visit& visit) const {
    for (int i = 1; i < size_; ++i) visit((me_ + i) % size_);
  }
  PeerChannel& channel(int peer) const { return group_.channel(peer, Lane::kCollective); }

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
  void AllReduceInSteps(GlooWait& wait);
  void BroadcastInSteps(GlooWait& wait);
  int64_t ExchangedBytes() const;

  // The slice of the whole that `member` of `size` makes or passes on: whole lines, but for the last.
  struct Slice {
    int64_t begin;
    int64_t end;
  };
  Slice SliceOf(int member, int size) const {
    const int64_t chunk = WholeLines((bytes_ + size - 1) / size);
    return {std::min(bytes_, chunk * member), std::min(bytes_, chunk * (member + 1))};
  }
  static Slice Part(const Slice& slice, int64_t begin, int64_t length) {
    return {std::min(slice.end, slice.begin + begin), std::min(slice.end, slice.begin + begin + length)};
  }
  int64_t ChunkBytes() const { return group_.has_tcp() ? kTcpChunk : kRingChunk; }

  GlooGroup& group_;
  const GlooCall& call_;
  const CollectiveKind kind_;
  const CollectiveDescriptor::Counts& counts_;
  const int root_;
  const int me_;
  const int size_;
  const int64_t item_;
  char* const input_;
  char* const output_;
  int64_t bytes_ = 0;      // of the whole, of kinds with one count
  bool in_steps_ = false;  // a large all-reduce or broadcast
  ReduceStream stream_ = ReduceStream(group_, call_.descriptor.dtype, call_.descriptor.op);
  int num_headers_ = 0;  // that have come
  // Of ring peers: 0: the first line is awaited, 1: the rest, 2: it has come.
  absl::InlinedVector<char, 16> header_stage_ = absl::InlinedVector<char, 16>(size_);
};

Piece Run::Outgoing(int peer) const {
  switch (kind_) {
    case CollectiveKind::kAllReduce:
      return in_steps_ ? Piece() : Piece{input_, bytes_};
    case CollectiveKind::kAllGather:
      return {input_, counts_[me_] * item_};
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return {input_ + Offset(counts_, peer) * item_, counts_[peer] * item_};
    case CollectiveKind::kBroadcast:
      return me_ == root_ && !in_steps_ ? Piece{input_, bytes_} : Piece();
    case CollectiveKind::kReduce:
      return peer == root_ ? Piece{input_, bytes_} : Piece();
    case CollectiveKind::kGather:
      return peer == root_ ? Piece{input_, counts_[me_] * item_} : Piece();
    case CollectiveKind::kScatter:
      return me_ == root_ ? Piece{input_ + Offset(counts_, peer) * item_, counts_[peer] * item_} : Piece();
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

Piece Run::Incoming(int peer) const {
  switch (kind_) {
    case CollectiveKind::kAllReduce:
      return {nullptr, in_steps_ ? 0 : bytes_};
    case CollectiveKind::kAllGather:
      return {output_ + Offset(counts_, peer) * item_, counts_[peer] * item_};
    case CollectiveKind::kReduceScatter:
      return {nullptr, counts_[me_] * item_};
    case CollectiveKind::kAllToAll:
      return {output_ + Offset(call_.receive_counts, peer) * item_, call_.receive_counts[peer] * item_};
    case CollectiveKind::kBroadcast:
      return peer == root_ && !in_steps_ ? Piece{output_, bytes_} : Piece();
    case CollectiveKind::kReduce:
      return {nullptr, me_ == root_ ? bytes_ : 0};
    case CollectiveKind::kGather:
      return me_ == root_ ? Piece{output_ + Offset(counts_, peer) * item_, counts_[peer] * item_} : Piece();
    case CollectiveKind::kScatter:
      return peer == root_ ? Piece{output_, counts_[me_] * item_} : Piece();
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

Piece Run::Own() const {
  switch (kind_) {
    case CollectiveKind::kAllGather:
      return {input_, counts_[me_] * item_};
    case CollectiveKind::kAllToAll:
      return {input_ + Offset(counts_, me_) * item_, counts_[me_] * item_};
    case CollectiveKind::kGather:
      return me_ == root_ ? Piece{input_, counts_[me_] * item_} : Piece();
    case CollectiveKind::kScatter:
      return me_ == root_ ? Piece{input_ + Offset(counts_, me_) * item_, counts_[me_] * item_} : Piece();
    default:
      return {};
  }
}

int64_t Run::OwnOffset() const {
  if (kind_ == CollectiveKind::kScatter) return 0;
  if (kind_ == CollectiveKind::kAllToAll) return Offset(call_.receive_counts, me_) * item_;
  return Offset(counts_, me_) * item_;
}

// Headers, and data behind them that need not wait for anything.
void Run::Post() {
  GlooHeader& own = group_.header_to(me_);
  own.Set(call_.descriptor, call_.receive_counts, call_.sequence);
  ForEachPeer([&](int peer) {
    GlooHeader& header = group_.header_to(peer);
    header.Set(call_.descriptor, call_.receive_counts, call_.sequence);
    const Piece piece = Outgoing(peer);
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
}

// Of pieces that go to a place of their own.
void Run::ReceiveData(int peer) {
  const Piece piece = Incoming(peer);
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
        peer, Lane::kCollective, [&] { return HasHeader(peer); }, wait);
    ++num_headers_;
  }
}

// By TCP the header is the oldest thing awaited, and behind it what ReceiveData expects.
bool Run::HasHeader(int peer) const {
  if (group_.by_memory(peer)) return header_stage_[peer] == 2;
  const bool expects_data = Incoming(peer).data != nullptr && !FitsHeader(Incoming(peer).num_bytes);
  return channel(peer).num_receives() - channel(peer).num_received() <= (expects_data ? 1 : 0);
}

const GlooHeader& Run::HeaderOf(int member) const {
  return member == me_ ? group_.header_to(me_) : group_.header_from(member);
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
  for (int peer = 1; peer < size_; ++peer) {
    if (!first.AgreesWith(HeaderOf(peer))) Disagree(0, peer, "");
  }
  if (kind_ != CollectiveKind::kAllToAll) return;
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      const int64_t sent = HeaderOf(from).counts()[to];
      const int64_t expected = HeaderOf(to).receive_counts()[from];
      if (sent == expected) continue;
      Disagree(from, to,
               absl::StrCat(": rank ", group_.ranks()[from], " sends ", sent, " elements to rank ",
                            group_.ranks()[to], ", which expects ", expected));
    }
  }
}

// The whole, or this member's piece, of all inputs, which their owners have sent here.
void Run::Reduce(GlooWait& wait) {
  const bool scatters = kind_ == CollectiveKind::kReduceScatter;
  const char* const own = scatters ? input_ + Offset(counts_, me_) * item_ : input_;
  const int64_t num_bytes = scatters ? counts_[me_] * item_ : bytes_;
  if (!FitsHeader(num_bytes) && size_ > 1) {
    const bool in_place = kind_ == CollectiveKind::kAllReduce && input_ == output_;
    return stream_.Run(wait, own, output_, num_bytes, in_place);
  }
  absl::InlinedVector<const void*, 8> inputs(size_);
  for (int peer = 0; peer < size_; ++peer) inputs[peer] = peer == me_ ? own : HeaderOf(peer).data();
  void* const to = output_;
  ReduceInOrder(call_.descriptor.dtype, call_.descriptor.op, inputs, {&to, 1}, num_bytes / item_);
}

// Chunk by chunk: everybody sends everybody its input of their slices, reduces its own slice and sends the
// result to all while it is in the cache.
void Run::AllReduceInSteps(GlooWait& wait) {
  const Slice mine = SliceOf(me_, size_);
  const int64_t chunk = ChunkBytes();
  for (int64_t begin = 0; begin < SliceOf(0, size_).end; begin += chunk) {
    ForEachPeer([&](int peer) {
      const Slice part = Part(SliceOf(peer, size_), begin, chunk);
      // Blocks are messages: see ReduceStream.
      for (int64_t at = part.begin; at < part.end; at += TcpChannel::kBlock) {
        channel(peer).Send(input_ + at, std::min(TcpChannel::kBlock, part.end - at));
      }
    });
    const Slice part = Part(mine, begin, chunk);
    stream_.Run(wait, input_ + part.begin, output_ + part.begin, part.end - part.begin,
                /*wait_until_sent=*/false);
    ForEachPeer([&](int peer) {
      const Slice theirs = Part(SliceOf(peer, size_), begin, chunk);
      channel(peer).Send(output_ + part.begin, part.end - part.begin);
      channel(peer).Receive(output_ + theirs.begin, theirs.end - theirs.begin);
    });
    group_.AwaitIdle(wait);
  }
}

// Chunk by chunk: the root sends each receiver its slice, and receivers pass theirs on to the others.
void Run::BroadcastInSteps(GlooWait& wait) {
  const int num_receivers = size_ - 1;
  const auto slice_of = [&](int member) {
    return SliceOf(member > root_ ? member - 1 : member, num_receivers);
  };
  const int64_t chunk = ChunkBytes();
  for (int64_t begin = 0; begin < SliceOf(0, num_receivers).end; begin += chunk) {
    if (me_ == root_) {
      ForEachPeer([&](int peer) {
        const Slice part = Part(slice_of(peer), begin, chunk);
        channel(peer).Send(input_ + part.begin, part.end - part.begin);
      });
    } else {
      const Slice mine = Part(slice_of(me_), begin, chunk);
      channel(root_).Receive(output_ + mine.begin, mine.end - mine.begin);
      group_.AwaitIdle(wait);
      ForEachPeer([&](int peer) {
        if (peer == root_) return;
        const Slice theirs = Part(slice_of(peer), begin, chunk);
        channel(peer).Send(output_ + mine.begin, mine.end - mine.begin);
        channel(peer).Receive(output_ + theirs.begin, theirs.end - theirs.begin);
      });
    }
    group_.AwaitIdle(wait);
  }
}

// What is left to do when all agree.
void Run::Share(GlooWait& wait) {
  const Piece own = Own();
  if (own.num_bytes > 0 && own.data != output_ + OwnOffset()) {
    std::memcpy(output_ + OwnOffset(), own.data, own.num_bytes);
  }
  ForEachPeer([&](int peer) {
    const Piece piece = Incoming(peer);
    if (piece.data != nullptr && piece.num_bytes > 0 && FitsHeader(piece.num_bytes)) {
      std::memcpy(piece.data, HeaderOf(peer).data(), piece.num_bytes);
    }
  });
  if (in_steps_) {
    return kind_ == CollectiveKind::kAllReduce ? AllReduceInSteps(wait) : BroadcastInSteps(wait);
  }
  const bool reduces = kind_ == CollectiveKind::kAllReduce || kind_ == CollectiveKind::kReduceScatter ||
                       (kind_ == CollectiveKind::kReduce && me_ == root_);
  if (reduces) Reduce(wait);
}

int64_t Run::ExchangedBytes() const {
  if (me_ != 0 || kind_ != CollectiveKind::kAllToAll) return 0;
  int64_t count = 0;
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      if (from != to) count += HeaderOf(from).counts()[to];
    }
  }
  return count * item_;
}

int64_t Run::Execute() {
  group_.ThrowIfFailed();
  group_.UseLanes(Lane::kCollective, Lane::kCollective);
  const auto what = [&] {
    return absl::StrCat(group_.Where(kind_, call_.sequence), ", ", call_.descriptor.ToString());
  };
  // First those that have not entered; when all have, those that still owe something.
  const auto missing = [&] {
    std::vector<int> members;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == me_) continue;
      const bool owes =
          num_headers_ < size_ - 1 ? !HasHeader(peer) : group_.IsBusy(peer) || stream_.Awaits(peer);
      if (owes) members.push_back(peer);
    }
    return members;
  };
  GlooWait wait{call_.timeout, what, missing};
  Post();
  AwaitHeaders(wait);
  Agree();
  Share(wait);
  group_.AwaitIdle(wait);
  group_.TakeHeaders();
  return ExchangedBytes();
}

}  // namespace

int64_t RunGlooCollective(GlooGroup& group, const GlooCall& call) { return Run(group, call).Execute(); }

}  // namespace weft
