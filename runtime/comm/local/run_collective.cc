#include "runtime/comm/local/run_collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

using Inputs = absl::InlinedVector<const void*, 8>;

// The group as `me` sees it between agreement and the last barrier.
struct Round {
  Group& group;
  const int me;
  const std::chrono::milliseconds timeout;
  const bool all_copied;  // every input lies in its posting: nobody's own memory is touched by others

  int size() const { return group.size(); }
  const Posting& posting(int member) const { return group.posting(me, member); }
  const Posting& mine() const { return posting(me); }
  int64_t item_size() const { return ItemSize(mine().dtype); }

  void Barrier() const {
    group.Arrive(me);
    group.AwaitAll(me, timeout);
  }

  // Every member's input from `offset` bytes on, by rank.
  Inputs InputsAt(int64_t offset) const {
    Inputs inputs(size());
    for (int member = 0; member < size(); ++member) inputs[member] = posting(member).input + offset;
    return inputs;
  }

  void Reduce(int64_t begin, int64_t count, char* output) const {
    if (count == 0) return;
    ReduceInOrder(mine().dtype, mine().op, InputsAt(begin * item_size()), output, count);
  }

  // Calls `visit` for every member, beginning with this one: members do not all read the same one at once.
  template <class Visit>
  void ForEachFromMe(const Visit& visit) const {
    for (int i = 0; i < size(); ++i) visit((me + i) % size());
  }
};

void Copy(const char* from, char* to, int64_t num_bytes) {
  if (num_bytes > 0 && from != to) std::memcpy(to, from, num_bytes);
}

template <class Counts>
int64_t Offset(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// The slice of `count` elements that `member` of `size` reduces. Slices end on cache lines, counted from the
// buffer's start, so that no two members write one line.
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

void FillPosting(Posting& posting, int member, const CollectiveCall& call) {
  const CollectiveDescriptor& descriptor = call.descriptor;
  posting.sequence = call.sequence;
  posting.kind = descriptor.kind;
  posting.dtype = descriptor.dtype;
  posting.op = descriptor.op;
  posting.root = descriptor.root;
  posting.counts.assign(descriptor.counts.begin(), descriptor.counts.end());
  posting.receive_counts.assign(call.receive_counts.begin(), call.receive_counts.end());
  posting.output = call.output.defined() ? static_cast<char*>(call.output.data()) : nullptr;
  const bool is_read =
      call.input.defined() && (descriptor.kind != CollectiveKind::kBroadcast || member == descriptor.root);
  const int64_t num_bytes = is_read ? call.input.num_bytes() : 0;
  posting.copied = num_bytes <= kCopiedBytes;
  posting.input = is_read ? static_cast<const char*>(call.input.data()) : nullptr;
  if (is_read && posting.copied) {
    Copy(posting.input, posting.copy, num_bytes);
    posting.input = posting.copy;
  }
}

bool Agrees(const Posting& a, const Posting& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         (a.kind == CollectiveKind::kAllToAll || a.counts == b.counts);
}

[[noreturn]] void Disagree(Group& group, int me, int a, int b, const std::string& what) {
  const auto call = [&](int member) {
    return absl::StrCat("rank ", group.ranks()[member], " called ",
                        group.posting(me, member).Descriptor().ToString());
  };
  const Posting& posting = group.posting(me, a);
  group.Fail(absl::StatusCode::kInvalidArgument,
             absl::StrCat(group.Where(posting.kind, posting.sequence), ": ", call(a), ", ", call(b), what));
  group.Leave(me);
}

// All members come to the same verdict, since all look at the same postings in the same order.
void Agree(Group& group, int me) {
  const Posting& first = group.posting(me, 0);
  for (int peer = 1; peer < group.size(); ++peer) {
    if (!Agrees(first, group.posting(me, peer))) Disagree(group, me, 0, peer, "");
  }
  if (first.kind != CollectiveKind::kAllToAll) return;
  for (int from = 0; from < group.size(); ++from) {
    for (int to = 0; to < group.size(); ++to) {
      const int64_t sent = group.posting(me, from).counts[to];
      const int64_t expected = group.posting(me, to).receive_counts[from];
      if (sent == expected) continue;
      Disagree(group, me, from, to,
               absl::StrCat(": rank ", group.ranks()[from], " sends ", sent, " elements to rank ",
                            group.ranks()[to], ", which expects ", expected));
    }
  }
}

void AllReduce(const Round& round) {
  const Posting& mine = round.mine();
  const int64_t count = mine.counts[0];
  if (round.all_copied) {
    round.Reduce(0, count, mine.output);
    return;
  }
  const int64_t item = round.item_size();
  {
    // In place too: slice `me` of every input is read by this member alone.
    const Group::Access access(round.group, round.me);
    const Slice slice = SliceOf(count, item, round.size(), round.me);
    round.Reduce(slice.begin, slice.count, mine.output + slice.begin * item);
  }
  round.Barrier();
  const Group::Access access(round.group, round.me);
  round.ForEachFromMe([&](int peer) {
    const Slice slice = SliceOf(count, item, round.size(), peer);
    const int64_t offset = slice.begin * item;
    Copy(round.posting(peer).output + offset, mine.output + offset, slice.count * item);
  });
}

void AllGather(const Round& round) {
  const Posting& mine = round.mine();
  const int64_t item = round.item_size();
  round.ForEachFromMe([&](int peer) {
    Copy(round.posting(peer).input, mine.output + Offset(mine.counts, peer) * item, mine.counts[peer] * item);
  });
}

void AllToAll(const Round& round) {
  const Posting& mine = round.mine();
  const int64_t item = round.item_size();
  round.ForEachFromMe([&](int peer) {
    const Posting& from = round.posting(peer);
    Copy(from.input + Offset(from.counts, round.me) * item,
         mine.output + Offset(mine.receive_counts, peer) * item, mine.receive_counts[peer] * item);
  });
}

// Large: every member reduces its slice, straight into the root's memory.
void ReduceToRoot(const Round& round) {
  const Posting& mine = round.mine();
  const int64_t count = mine.counts[0];
  if (round.all_copied) {
    if (round.me == mine.root) round.Reduce(0, count, mine.output);
    return;
  }
  const Slice slice = SliceOf(count, round.item_size(), round.size(), round.me);
  round.Reduce(slice.begin, slice.count, round.posting(mine.root).output + slice.begin * round.item_size());
}

// Large: every member writes its piece, straight into the root's memory.
void GatherToRoot(const Round& round) {
  const Posting& mine = round.mine();
  char* const output = round.posting(mine.root).output;
  const auto copy_piece = [&](int member) {
    Copy(round.posting(member).input, output + Offset(mine.counts, member) * round.item_size(),
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
  const Posting& mine = round.mine();
  const int64_t item = round.item_size();
  switch (mine.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(round);
    case CollectiveKind::kAllGather:
      return AllGather(round);
    case CollectiveKind::kReduceScatter:
      return round.Reduce(Offset(mine.counts, round.me), mine.counts[round.me], mine.output);
    case CollectiveKind::kAllToAll:
      return AllToAll(round);
    case CollectiveKind::kBroadcast:
      return Copy(round.posting(mine.root).input, mine.output, mine.counts[0] * item);
    case CollectiveKind::kReduce:
      return ReduceToRoot(round);
    case CollectiveKind::kGather:
      return GatherToRoot(round);
    case CollectiveKind::kScatter:
      return Copy(round.posting(mine.root).input + Offset(mine.counts, round.me) * item, mine.output,
                  mine.counts[round.me] * item);
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      return;
  }
}

// Where only the root's memory is touched by others, only the root stays till they are done.
bool MustStay(const Posting& mine, int me) {
  switch (mine.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter:
    case CollectiveKind::kGather:
      return me == mine.root;
    default:
      return true;
  }
}

int64_t ExchangedBytes(const Round& round) {
  if (round.me != 0 || round.mine().kind != CollectiveKind::kAllToAll) return 0;
  int64_t count = 0;
  for (int from = 0; from < round.size(); ++from) {
    for (int to = 0; to < round.size(); ++to) {
      if (from != to) count += round.posting(from).counts[to];
    }
  }
  return count * round.item_size();
}

}  // namespace

int64_t RunCollective(Group& group, int member, const CollectiveCall& call) {
  FillPosting(group.NextPosting(member), member, call);
  group.Arrive(member);
  group.AwaitAll(member, call.timeout);
  Agree(group, member);
  bool all_copied = true;
  for (int peer = 0; peer < group.size(); ++peer) all_copied &= group.posting(member, peer).copied;

  const Round round{group, member, call.timeout, all_copied};
  if (all_copied) {
    Share(round);
    return ExchangedBytes(round);
  }
  if (call.descriptor.kind == CollectiveKind::kAllReduce) {
    Share(round);  // has a barrier in its middle, so it marks its accesses itself
  } else {
    const Group::Access access(group, member);
    Share(round);
  }
  const int64_t exchanged_bytes = ExchangedBytes(round);
  group.Arrive(member);
  if (MustStay(round.mine(), member)) group.AwaitAll(member, call.timeout);
  return exchanged_bytes;
}

}  // namespace weft
