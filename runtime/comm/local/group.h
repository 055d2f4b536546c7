#ifndef WEFT_RUNTIME_COMM_LOCAL_GROUP_H_
#define WEFT_RUNTIME_COMM_LOCAL_GROUP_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "runtime/comm/collective.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/group_text.h"
#include "runtime/comm/local/mailbox.h"
#include "runtime/comm/local/wait_point.h"

namespace weft {

// Inputs up to this size travel inside the posting: peers then read nothing of the member's own, so it may
// leave without waiting for them, and a small collective takes one barrier.
inline constexpr int64_t kLocalCopiedBytes = 512;
// Up to this size, in its first cache line.
inline constexpr int64_t kLocalShortBytes = 24;

// One of a list of collectives, as its member shows it.
struct LocalPart {
  const char* input = nullptr;
  char* output = nullptr;
  int64_t count = 0;  // of the kinds that have one
  absl::Span<const int64_t> counts;
};

// What a member shows its peers when it enters a collective: the descriptor to agree on, and where its data
// lie. Of a small all-reduce, reduce or broadcast, peers read the first cache line alone: another costs as
// much again as the barrier.
struct alignas(128) LocalPosting {
  std::atomic<uint64_t> phase = 0;  // the member's arrivals so far, when it last arrived in this collective
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  bool copied = true;  // `input` lies in this posting
  int root = 0;        // of the kinds that have one; of others, what they are of (fingerprint); of a list -1
  int64_t count = 0;   // of the kinds that have one
  const char* input = nullptr;  // null: peers read nothing here
  char* output = nullptr;
  char short_copy[kLocalShortBytes];
  alignas(64) char copy[kLocalCopiedBytes];
  CollectiveDescriptor::Counts counts;  // of the kinds that have one per rank
  CollectiveDescriptor::Counts receive_counts;
  uint64_t sequence = 0;
  std::vector<LocalPart> parts;  // of a list; `count` and `counts` are then their sums
  uint32_t list_fingerprint = 0;

  CollectiveDescriptor Descriptor() const;
};
static_assert(offsetof(LocalPosting, copy) == 64, "what peers read first is one cache line");

// What the members of one `local` group share: their postings, a barrier, mailboxes, and the failure that
// ends the group.
//
// A collective is: fill NextPosting, Arrive, AwaitAll, look at the peers' postings, read their memory inside
// an Access, and Arrive again before the memory may change. Postings alternate between two places: a member
// that writes its next but one has seen all arrive at the one between, so nobody reads the old one any more.
//
// Threads: a `member` argument says who calls; one thread at a time for each member. Fail: any thread.
class LocalGroup {
 public:
  // `spin`: as WaitPoint.
  LocalGroup(std::string name, std::vector<int> ranks, bool spin);

  // Members wait without spinning: threads that compute get the cores.
  void SetBlocksAtOnce() { wait_point_.SetBlocksAtOnce(); }

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  LocalPosting& NextPosting(int member);
  // `peer`'s posting for the collective that `member` is in; only between AwaitAll and the next Arrive but
  // one.
  const LocalPosting& posting(int member, int peer) const {
    return slots_[peer].postings[slots_[member].num_collectives % 2];
  }
  Mailbox& mailbox(int member) { return slots_[member].mailbox; }

  // Counts this member's arrival at its next barrier.
  void Arrive(int member);

  // Waits until every member has arrived as often as this one.
  // Errors: DeadlineExceeded after `timeout`, which ends the group; or what has ended it.
  void AwaitAll(int member, std::chrono::milliseconds timeout);

  // Waits until `ready`, for something other than a barrier. `missing` gives the members still awaited,
  // `what` the operation's name, for the error. `ready` is made of sequentially consistent loads; see
  // NotifyAll.
  void AwaitReady(int member, absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                  absl::FunctionRef<std::string()> what, std::chrono::milliseconds timeout);
  void NotifyAll() { wait_point_.Notify(); }

  // While it lives, `member` may touch peers' memory: a peer that leaves because the group failed waits for
  // it. Never wait for anything inside.
  // Errors: what has ended the group.
  class Access {
   public:
    Access(LocalGroup& group, int member);
    ~Access() { busy_.store(false); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  // Ends the group, unless it has ended: every member that waits, or calls later, throws this error.
  void Fail(absl::StatusCode code, const std::string& message);
  bool failed() const { return failure_.failed(); }
  void ThrowIfFailed() const { failure_.ThrowIfFailed(); }

  // Throws the failure once no peer touches this member's memory any more.
  [[noreturn]] void Leave(int member) const;

  // `member` will arrive nowhere any more: its rank has ended. Members that wait for it fail at once.
  void MarkDeparted(int member);

  // "group 'dp', all_reduce #3" and "world ranks [1, 3]": for messages.
  std::string Where(CollectiveKind kind, uint64_t sequence) const {
    return OperationText(name_, kind, sequence);
  }
  std::string WorldRanks(const std::vector<int>& members) const { return WorldRanksText(ranks_, members); }

 private:
  // Each part on lines of its own: peers spin on a posting's phase while the owner counts and receives.
  struct Slot {
    LocalPosting postings[2];
    alignas(128) uint64_t num_collectives = 0;  // the owner's, as is the next
    uint64_t num_arrivals = 0;
    alignas(128) std::atomic<bool> busy = false;  // inside an Access
    std::atomic<bool> departed = false;
    Mailbox mailbox;
  };

  // `member` has seen `peer` arrive as often as `phase` says.
  bool HasArrived(int member, int peer, uint64_t phase) const {
    return posting(member, peer).phase.load() >= phase;
  }

  // As AwaitReady, for any callables; the barrier's is called every few nanoseconds, so it is inlined.
  template <class Ready, class Missing, class What>
  void Await(int member, const Ready& ready, const Missing& missing, const What& what,
             std::chrono::milliseconds timeout);
  std::vector<int> Departed() const;  // in order
  void FailMissing(int member, const std::vector<int>& missing, const std::string& what,
                   std::optional<std::chrono::milliseconds> waited);

  const std::string name_;
  const std::vector<int> ranks_;
  const std::unique_ptr<Slot[]> slots_;
  WaitPoint wait_point_;
  std::atomic<int> num_departed_ = 0;
  GroupFailure failure_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_GROUP_H_
