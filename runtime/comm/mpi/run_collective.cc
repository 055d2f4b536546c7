#include "runtime/comm/mpi/run_collective.h"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "runtime/comm/mpi/move_large.h"
#include "runtime/comm/mpi/wait.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

void Copy(const char* from, char* to, int64_t num_bytes) {
  if (num_bytes > 0 && from != to) std::memcpy(to, from, num_bytes);
}

template <class Counts>
int64_t Offset(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// What all have entered, in words for errors.
class Entered {
 public:
  Entered(const MpiGroup& group, const CollectiveCall& call) : group_(group), call_(call) {}
  std::string operator()() const {
    return absl::StrCat(group_.Where(call_.descriptor.kind, call_.sequence), ", ",
                        call_.descriptor.ToString());
  }

 private:
  const MpiGroup& group_;
  const CollectiveCall& call_;
};

// Enters the collective and returns what every member has entered it with, by group rank.
std::vector<MpiPosting> Exchange(MpiGroup& group, const CollectiveCall& call) {
  const CollectiveDescriptor& descriptor = call.descriptor;
  const bool is_read = call.input.defined() &&
                       (descriptor.kind != CollectiveKind::kBroadcast || group.member() == descriptor.root);
  const int64_t num_bytes = is_read ? call.input.num_bytes() : 0;
  MpiPosting mine;
  mine.descriptor = descriptor;
  mine.sequence = call.sequence;
  mine.receive_counts.assign(call.receive_counts.begin(), call.receive_counts.end());
  mine.own = is_read ? static_cast<const char*>(call.input.data()) : nullptr;
  mine.copied = num_bytes <= kMpiCopiedBytes || group.size() == 1;

  std::vector<MpiPosting> postings(group.size());
  if (group.size() > 1) {
    MpiPacketWriter packet(MpiPacketKind::kEnter, group.key());
    mine.Write(packet, num_bytes);
    group.SendToAll(packet);
    const auto missing = [&] { return group.MissingPostings(); };
    const Entered what(group, call);
    MpiWait wait(group, call.timeout);
    uint64_t num_received = group.num_received();
    while (!group.TakePostings(postings)) {
      // Nothing new: no other thread's poll has brought anything, nor has this one's.
      while (group.num_received() == num_received) wait.Turn({.what = what, .missing = missing});
      num_received = group.num_received();
    }
  }
  postings[group.member()] = std::move(mine);
  return postings;
}

// Of all-to-alls, each sender's counts are compared with the receivers'.
bool Agrees(const CollectiveDescriptor& a, const CollectiveDescriptor& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.num_parts == b.num_parts && a.fingerprint == b.fingerprint &&
         (a.kind == CollectiveKind::kAllToAll || a.counts == b.counts);
}

[[noreturn]] void Disagree(MpiGroup& group, absl::Span<const MpiPosting> postings, int a, int b,
                           const std::string& what) {
  const auto call = [&](int member) {
    return absl::StrCat("rank ", group.ranks()[member], " called ", postings[member].descriptor.ToString());
  };
  group.Fail(absl::StatusCode::kInvalidArgument,
             absl::StrCat(group.Where(postings[a].descriptor.kind, postings[a].sequence), ": ", call(a), ", ",
                          call(b), what));
  group.Throw();
}

// All members come to the same verdict, since all look at the same postings in the same order.
void Agree(MpiGroup& group, absl::Span<const MpiPosting> postings) {
  const CollectiveDescriptor& first = postings[0].descriptor;
  for (int peer = 1; peer < group.size(); ++peer) {
    if (!Agrees(first, postings[peer].descriptor)) Disagree(group, postings, 0, peer, "");
  }
  if (first.kind != CollectiveKind::kAllToAll) return;
  for (int from = 0; from < group.size(); ++from) {
    for (int to = 0; to < group.size(); ++to) {
      const int64_t sent = postings[from].descriptor.counts[to];
      const int64_t expected = postings[to].receive_counts[from];
      if (sent == expected) continue;
      Disagree(group, postings, from, to,
               absl::StrCat(": rank ", group.ranks()[from], " sends ", sent, " elements to rank ",
                            group.ranks()[to], ", which expects ", expected));
    }
  }
}

// A small collective: every input is here.
class Small {
 public:
  Small(absl::Span<const MpiPosting> postings, int me, char* output)
      : postings_(postings),
        mine_(postings[me].descriptor),
        me_(me),
        item_(ItemSize(mine_.dtype)),
        output_(output) {}

  void Run() const {
    const auto& counts = mine_.counts;
    const int size = static_cast<int>(postings_.size());
    switch (mine_.kind) {
      case CollectiveKind::kAllReduce:
        return Reduce(0, counts[0]);
      case CollectiveKind::kReduceScatter:
        return Reduce(Offset(counts, me_), counts[me_]);
      case CollectiveKind::kReduce:
        return me_ == mine_.root ? Reduce(0, counts[0]) : void();
      case CollectiveKind::kGather:
        if (me_ != mine_.root) return;
        [[fallthrough]];
      case CollectiveKind::kAllGather:
        for (int peer = 0; peer < size; ++peer) Move(peer, 0, Offset(counts, peer), counts[peer]);
        return;
      case CollectiveKind::kBroadcast:
        return me_ != mine_.root ? Move(mine_.root, 0, 0, counts[0]) : void();
      case CollectiveKind::kScatter:
        return Move(mine_.root, Offset(counts, me_), 0, counts[me_]);
      case CollectiveKind::kAllToAll:
        for (int peer = 0; peer < size; ++peer) {
          const auto& received = postings_[me_].receive_counts;
          Move(peer, Offset(postings_[peer].descriptor.counts, me_), Offset(received, peer), received[peer]);
        }
        return;
      case CollectiveKind::kSendRecv:
      case CollectiveKind::kBarrier:
        return;
    }
  }

 private:
  // The elements from `begin` on of all inputs, into the output.
  void Reduce(int64_t begin, int64_t count) const {
    if (count == 0) return;
    absl::InlinedVector<const void*, 8> inputs;
    for (const MpiPosting& posting : postings_) inputs.push_back(posting.input() + begin * item_);
    void* const output = output_;
    ReduceInOrder(mine_.dtype, mine_.op, inputs, {&output, 1}, count);
  }

  void Move(int peer, int64_t from, int64_t to, int64_t count) const {
    Copy(postings_[peer].input() + from * item_, output_ + to * item_, count * item_);
  }

  const absl::Span<const MpiPosting> postings_;
  const CollectiveDescriptor& mine_;
  const int me_;
  const int64_t item_;
  char* const output_;
};

}  // namespace

void RunMpiCollective(MpiGroup& group, const CollectiveCall& call) {
  const std::vector<MpiPosting> postings = Exchange(group, call);
  NoteAllEntered(call);
  Agree(group, postings);
  bool all_copied = true;
  for (const MpiPosting& posting : postings) all_copied &= posting.copied;
  if (all_copied) {
    char* const output = call.output.defined() ? static_cast<char*>(call.output.data()) : nullptr;
    Small(postings, group.member(), output).Run();
  } else {
    MoveLarge(group, call, postings, Entered(group, call));
  }
}

}  // namespace weft
