#ifndef WEFT_RUNTIME_COMM_NCCL_CALL_LOG_H_
#define WEFT_RUNTIME_COMM_NCCL_CALL_LOG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/comm/collective.h"
#include "runtime/comm/communicator.h"

namespace weft {

// What one member of a group has called: NCCL does not compare what its members call, so they compare
// these when one of them is late. A value.
//
// Cost: memory for each call that has not ended.
class CallLog {
 public:
  struct Call {
    CollectiveDescriptor descriptor;
    std::vector<int64_t> receive_counts;  // all-to-all
    // In place of counts there is their sum, and, where all members have the same, the fingerprint tells what they are, too.
    bool is_short = false;

    bool operator==(const Call&) const = default;
    Call Short() const;
  };
  struct Packet {
    uint64_t sequence = 0;  // of its SendRecv batch
    int64_t num_bytes = 0;
    std::string type;  // "f32[5]"

    bool operator==(const Packet&) const = default;
  };
  // Some of a row of things, one after another, and how many there were. A member's own row has those that are under way, and
  // the last before them: whatever the host issues ahead, what is judged stays.
  template <class T>
  struct Tail {
    uint64_t num = 0;
    uint64_t num_done = 0;  // the first of them, which have ended
    uint64_t first = 1;     // the number of the first that is there
    std::deque<T> there;

    // The `number`-th, from 1; null if it is not there.
    const T* At(uint64_t number) const {
      return number < first || number >= end() ? nullptr : &there[number - first];
    }
    uint64_t end() const { return first + there.size(); }  // the number behind the last that is there
    void Add(T value) {
      ++num;
      there.push_back(std::move(value));
    }
    // All up to `number` have ended.
    void Done(uint64_t number) {
      num_done = number;
      for (; first + kKept <= num_done; ++first) there.pop_front();
    }
    bool operator==(const Tail&) const = default;
  };
  static constexpr size_t kKept = 128;  // of those that have ended

  void AddCall(const CollectiveDescriptor& descriptor, const std::vector<int64_t>& receive_counts) {
    calls_.Add({descriptor, receive_counts});
  }
  void AddBatch(uint64_t sequence, int rank, absl::Span<const Message> sends,
                absl::Span<const Message> receives);

  // The operation has ended, as have all of its kind before it: a collective, by its number, or a batch.
  void Done(CollectiveKind kind, uint64_t sequence);

  const Tail<Call>& calls() const { return calls_; }
  // What was sent to, and is to be received from, a peer.
  const Tail<Packet>& sent_to(int peer) const { return Find(sent_, peer); }
  const Tail<Packet>& received_from(int peer) const { return Find(received_, peer); }

  // What is told to others, and judged by: the same numbers of calls and packets; of each row the last `kept` that have ended
  // and the first that have not, 128 and all of their first batch. Where counts differ too much to be told of all calls, it has
  // those of the oldest call that has not ended and of some before and behind it, as far as 32 KiB go, and of the others their
  // sums.
  CallLog Told(size_t kept = kKept) const;

  // As text for a store, and back. What Told gives is short however many members there are, but for messages to many peers.
  // Errors: Internal for what Encode has not made.
  std::string Encode() const;
  static CallLog Decode(absl::string_view text);

  bool operator==(const CallLog&) const = default;

 private:
  using Tails = std::map<int, Tail<Packet>>;
  static void ShortenCounts(Tail<Call>* calls);
  static const Tail<Packet>& Find(const Tails& tails, int peer);

  Tail<Call> calls_;
  Tails sent_;
  Tails received_;
};

// The members' logs by group rank; nullopt: not known.
using CallLogs = std::vector<std::optional<CallLog>>;

// The first calls that members of a group disagree about, both sides named; nullopt if there are none among
// those that the logs still have.
std::optional<std::string> FindDisagreement(const std::string& group, const std::vector<int>& world_ranks,
                                            const CallLogs& logs);

// The members that have not come to an operation of `rank`: a collective by its number, or the other ends of
// a SendRecv batch's messages. A member whose log is not known has not come. Ascending group ranks.
std::vector<int> FindMissing(int rank, CollectiveKind kind, uint64_t sequence, const CallLogs& logs);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_CALL_LOG_H_
