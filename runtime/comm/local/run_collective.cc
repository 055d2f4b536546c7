#include "runtime/comm/local/run_collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "runtime/comm/link_turns.h"
#include "runtime/comm/local/agreement.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

using Inputs = absl::InlinedVector<const void*, 8>;
using Outputs = absl::InlinedVector<void*, 8>;

void Copy(const char* from, char* to, int64_t num_bytes, Stores stores = Stores::kCached) {
  if (num_bytes == 0 || from == to) return;
  if (stores == Stores::kCached) {
    std::memcpy(to, from, num_bytes);
  } else {
    void* const output = to;
    CopyToAll(from, {&output, 1}, num_bytes, stores);
  }
}

// Every one of `places`, `num_bytes` further on.
Outputs Behind(absl::Span<void* const> places, int64_t num_bytes) {
  Outputs behind(places.begin(), places.end());
  for (void*& place : behind) place = static_cast<char*>(place) + num_bytes;
  return behind;
}

// The group as `me` sees it between agreement and the last barrier.
struct Round {
  LocalGroup& group;
  const int me;
  const std::chrono::milliseconds timeout;
  const bool all_copied;        // every input lies in its posting: nobody's own memory is touched by others
  const int part;               // of a list, the one whose turn it is; -1: it is no list
  LinkTurns::Turn* const turn;  // null: all is moved at once
  std::optional<LocalGroup::Access>* const access;  // none while it waits for a turn, nor where all is copied

  // The buffers of a member, and its counts.
  const char* input(int member) const {
    return part < 0 ? posting(member).input : posting(member).parts[part].input;
  }
  char* output(int member) const {
    return part < 0 ? posting(member).output : posting(member).parts[part].output;
  }
  int64_t count() const { return part < 0 ? mine().count : mine().parts[part].count; }
  absl::Span<const int64_t> counts() const {
    return part < 0 ? absl::MakeConstSpan(mine().counts) : mine().parts[part].counts;
  }

  int size() const { return group.size(); }
  const LocalPosting& posting(int member) const { return group.posting(me, member); }
  const LocalPosting& mine() const { return posting(me); }
  int64_t item_size() const { return ItemSize(mine().dtype); }

  // Every member's input from `offset` bytes on, by rank.
  Inputs InputsAt(int64_t offset) const {
    Inputs inputs(size());
    for (int member = 0; member < size(); ++member) inputs[member] = input(member) + offset;
    return inputs;
  }

  // Every member's output from `offset` bytes on, but for those that are `input`.
  Outputs OutputsAt(int64_t offset, const char* source) const {
    Outputs outputs;
    for (int member = 0; member < size(); ++member) {
      char* const place = output(member) + offset;
      if (place != source) outputs.push_back(place);
    }
    return outputs;
  }

  // Calls `move(begin, end)` for the bytes from 0 to `num_bytes`: for all at once, or by chunks. Between two, of this call
  // or of one before it, other operations may go first.
  template <class Move>
  void InChunks(int64_t num_bytes, const Move& move) const {
    if (turn == nullptr || !access->has_value()) return move(0, num_bytes);
    for (int64_t begin = 0; begin < num_bytes;) {
      if (turn->is_full()) {
        access->reset();
        turn->Hold();
        access->emplace(group, me);
      }
      const int64_t end = std::min(num_bytes, begin + turn->chunk_bytes());
      move(begin, end);
      turn->Fill(end - begin);
      begin = end;
    }
  }

  // The elements from `begin` on of all inputs, into every one of `outputs`.
  void Reduce(int64_t begin, int64_t count, absl::Span<void* const> outputs,
              Stores stores = Stores::kCached) const {
    if (count == 0) return;
    const int64_t item = item_size();
    InChunks(count * item, [&](int64_t first, int64_t last) {
      ReduceInOrder(mine().dtype, mine().op, InputsAt(begin * item + first), Behind(outputs, first),
                    (last - first) / item, stores);
    });
  }
  void Reduce(int64_t begin, int64_t count, void* output) const { Reduce(begin, count, {&output, 1}); }

  // `num_bytes` to every one of `outputs`.
  void CopyToEach(const char* from, absl::Span<void* const> outputs, int64_t num_bytes, Stores stores) const {
    InChunks(num_bytes, [&](int64_t first, int64_t last) {
      CopyToAll(from + first, Behind(outputs, first), last - first, stores);
    });
  }

  void CopyPiece(const char* from, char* to, int64_t num_bytes, Stores stores = Stores::kCached) const {
    if (from == to) return;
    InChunks(num_bytes,
             [&](int64_t first, int64_t last) { Copy(from + first, to + first, last - first, stores); });
  }

  // Calls `visit` for every member, beginning with this one: members do not all read the same one at once.
  template <class Visit>
  void ForEachFromMe(const Visit& visit) const {
    for (int i = 0; i < size(); ++i) visit((me + i) % size());
  }
};

template <class Counts>
int64_t Offset(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// The slice of `count` elements that `member` of `size` makes for all. Slices end on cache lines, counted
// from the buffer's start, so that no two members write one line.
struct Slice {
  int64_t begin;
  int64_t count;
};

Slice SliceOf(int64_t count, int64_t item_size, int size, int member) {
  const int64_t line = 64 / item_size;
  const int64_t chunk = ((count + size - 1) / size + line - 1) / line * line;
  const int64_t begin = std::min(count, chunk * member);
  return {begin, std::min(count, begin + chunk) - begin};
}

void FillPosting(LocalPosting& posting, int member, const CollectiveCall& call) {
  const CollectiveDescriptor& descriptor = call.descriptor;
  posting.sequence = call.sequence;
  posting.kind = descriptor.kind;
  posting.dtype = descriptor.dtype;
  posting.op = descriptor.op;
  posting.root = HasRoot(descriptor.kind) ? descriptor.root : static_cast<int>(descriptor.fingerprint);
  posting.count = 0;
  posting.counts.clear();
  posting.receive_counts.clear();
  posting.parts.clear();
  if (HasOneCount(descriptor.kind)) {
    posting.count = descriptor.counts[0];
  } else if (descriptor.kind != CollectiveKind::kBarrier) {
    posting.counts = descriptor.counts;
    posting.receive_counts.assign(call.receive_counts.begin(), call.receive_counts.end());
  }
  posting.output = call.output.defined() ? static_cast<char*>(call.output.data()) : nullptr;
  const bool is_read =
      call.input.defined() && (descriptor.kind != CollectiveKind::kBroadcast || member == descriptor.root);
  const int64_t num_bytes = is_read ? call.input.num_bytes() : 0;
  posting.copied = num_bytes <= kLocalCopiedBytes;
  posting.input = is_read ? static_cast<const char*>(call.input.data()) : nullptr;
  if (is_read && posting.copied) {
    char* const copy = num_bytes <= kLocalShortBytes ? posting.short_copy : posting.copy;
    Copy(posting.input, copy, num_bytes);
    posting.input = copy;
  }
}

// Large: every member makes its slice for all, in one pass: reads all inputs' slice and writes it to all
// outputs. In place too: slice `me` of every buffer is touched by this member alone.
void AllReduce(const Round& round) {
  const int64_t count = round.count();
  if (round.all_copied) return round.Reduce(0, count, round.output(round.me));
  const int64_t item = round.item_size();
  const Slice slice = SliceOf(count, item, round.size(), round.me);
  bool in_place = false;
  for (int member = 0; member < round.size(); ++member) {
    in_place |= round.input(member) == round.output(member);
  }
  // What was just read is in the cache anyhow.
  const Stores stores = in_place ? Stores::kCached : StoresFor(count * item, round.size());
  round.Reduce(slice.begin, slice.count, round.OutputsAt(slice.begin * item, nullptr), stores);
}

void AllGather(const Round& round) {
  const absl::Span<const int64_t> counts = round.counts();
  const int64_t item = round.item_size();
  if (round.all_copied) {
    int64_t begin = 0;
    for (int peer = 0; peer < round.size(); ++peer) {
      Copy(round.input(peer), round.output(round.me) + begin * item, counts[peer] * item);
      begin += counts[peer];
    }
    return;
  }
  // Large: every member copies its slice of the whole to all, so that inputs are read once, and uneven pieces
  // are nobody's burden.
  const int64_t count = Offset(counts, round.size());
  const Slice slice = SliceOf(count, item, round.size(), round.me);
  const Stores stores = StoresFor(count * item, round.size());
  int64_t begin = 0;  // of the peer's piece
  for (int peer = 0; peer < round.size(); begin += counts[peer++]) {
    const int64_t first = std::max(begin, slice.begin);
    const int64_t last = std::min(begin + counts[peer], slice.begin + slice.count);
    if (first >= last) continue;
    const char* const input = round.input(peer) + (first - begin) * item;
    round.CopyToEach(input, round.OutputsAt(first * item, input), (last - first) * item, stores);
  }
}

// Large: every member copies its slice of the root's tensor to all: the root does its part, and what it has
// is read once.
void Broadcast(const Round& round) {
  const LocalPosting& mine = round.mine();
  const int64_t item = round.item_size();
  const char* const input = round.posting(mine.root).input;
  if (round.all_copied) return Copy(input, mine.output, mine.count * item);
  const Slice slice = SliceOf(mine.count, item, round.size(), round.me);
  if (slice.count == 0) return;
  Outputs outputs = round.OutputsAt(slice.begin * item, nullptr);
  outputs.erase(outputs.begin() + mine.root);
  round.CopyToEach(input + slice.begin * item, outputs, slice.count * item,
                   StoresFor(mine.count * item, round.size() - 1));
}

void AllToAll(const Round& round) {
  const LocalPosting& mine = round.mine();
  const int64_t item = round.item_size();
  const Stores stores = StoresFor(Offset(mine.receive_counts, round.size()) * item, round.size());
  round.ForEachFromMe([&](int peer) {
    const LocalPosting& from = round.posting(peer);
    round.CopyPiece(from.input + Offset(from.counts, round.me) * item,
                    mine.output + Offset(mine.receive_counts, peer) * item, mine.receive_counts[peer] * item,
                    stores);
  });
}

// Large: every member reduces its slice, straight into the root's memory.
void ReduceToRoot(const Round& round) {
  const LocalPosting& mine = round.mine();
  const int64_t count = mine.count;
  if (round.all_copied) {
    if (round.me == mine.root) round.Reduce(0, count, mine.output);
    return;
  }
  const Slice slice = SliceOf(count, round.item_size(), round.size(), round.me);
  round.Reduce(slice.begin, slice.count, round.posting(mine.root).output + slice.begin * round.item_size());
}

// Large: every member writes its piece, straight into the root's memory.
void GatherToRoot(const Round& round) {
  const LocalPosting& mine = round.mine();
  char* const output = round.posting(mine.root).output;
  const auto copy_piece = [&](int member) {
    round.CopyPiece(round.posting(member).input, output + Offset(mine.counts, member) * round.item_size(),
                    mine.counts[member] * round.item_size());
  };
  if (!round.all_copied) {
    copy_piece(round.me);
  } else if (round.me == mine.root) {
    for (int member = 0; member < round.size(); ++member) copy_piece(member);
  }
}

// This member's share. Its own memory is touched by others only if `!all_copied`.
void Share(const Round& round) {
  const LocalPosting& mine = round.mine();
  const int64_t item = round.item_size();
  switch (mine.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(round);
    case CollectiveKind::kAllGather:
      return AllGather(round);
    case CollectiveKind::kReduceScatter:
      return round.Reduce(Offset(round.counts(), round.me), round.counts()[round.me], round.output(round.me));
    case CollectiveKind::kAllToAll:
      return AllToAll(round);
    case CollectiveKind::kBroadcast:
      return Broadcast(round);
    case CollectiveKind::kReduce:
      return ReduceToRoot(round);
    case CollectiveKind::kGather:
      return GatherToRoot(round);
    case CollectiveKind::kScatter:
      return round.CopyPiece(round.posting(mine.root).input + Offset(mine.counts, round.me) * item,
                             mine.output, mine.counts[round.me] * item);
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      return;
  }
}

void FillPostingOfList(LocalPosting& posting, absl::Span<const CollectiveCall> calls) {
  const CollectiveDescriptor& first = calls[0].descriptor;
  posting.sequence = calls[0].sequence;
  posting.kind = first.kind;
  posting.dtype = first.dtype;
  posting.op = first.op;
  posting.root = -1;  // so that no single call agrees with a list
  posting.count = 0;
  posting.counts.assign(HasOneCount(first.kind) ? 0 : first.counts.size(), 0);
  posting.receive_counts.clear();
  posting.copied = false;
  posting.input = nullptr;
  posting.output = nullptr;
  posting.parts.clear();
  for (const CollectiveCall& call : calls) {
    const CollectiveDescriptor::Counts& counts = call.descriptor.counts;
    const bool has_one = HasOneCount(first.kind);
    posting.parts.push_back({.input = static_cast<const char*>(call.input.data()),
                             .output = static_cast<char*>(call.output.data()),
                             .count = has_one ? counts[0] : 0,
                             .counts = has_one ? absl::Span<const int64_t>() : counts});
    if (has_one) posting.count += counts[0];
    for (size_t i = 0; i < posting.counts.size(); ++i) posting.counts[i] += counts[i];
  }
}

// Where only the root's memory is touched by others, only the root stays till they are done.
bool MustStay(const LocalPosting& mine, int me) {
  switch (mine.kind) {
    case CollectiveKind::kScatter:
    case CollectiveKind::kGather:
      return me == mine.root;
    default:
      return true;
  }
}

}  // namespace

void RunLocalCollectives(LocalGroup& group, int member, const CollectiveDescriptor& list,
                         absl::Span<const CollectiveCall> calls) {
  LocalPosting& posting = group.NextPosting(member);
  FillPostingOfList(posting, calls);
  posting.list_fingerprint = list.fingerprint;
  group.Arrive(member);
  group.AwaitAll(member, calls[0].timeout);
  NoteAllEntered(calls[0]);
  AgreeOnPostings(group, member);
  AgreeOnParts(group, member);
  std::optional<LocalGroup::Access> access(std::in_place, group, member);
  for (int part = 0; part < std::ssize(calls); ++part) {
    Share(Round{group, member, calls[0].timeout, /*all_copied=*/false, part, calls[0].turn, &access});
  }
  access.reset();
  group.Arrive(member);
  group.AwaitAll(member, calls[0].timeout);
}

void RunLocalCollective(LocalGroup& group, int member, const CollectiveCall& call) {
  FillPosting(group.NextPosting(member), member, call);
  group.Arrive(member);
  group.AwaitAll(member, call.timeout);
  NoteAllEntered(call);
  AgreeOnPostings(group, member);
  bool all_copied = true;
  for (int peer = 0; peer < group.size(); ++peer) all_copied &= group.posting(member, peer).copied;

  std::optional<LocalGroup::Access> access;
  const Round round{group, member, call.timeout, all_copied, /*part=*/-1, call.turn, &access};
  if (all_copied) {
    Share(round);
    return;
  }
  access.emplace(group, member);
  Share(round);
  access.reset();
  group.Arrive(member);
  if (MustStay(round.mine(), member)) group.AwaitAll(member, call.timeout);
}

}  // namespace weft
