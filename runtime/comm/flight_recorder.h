#ifndef WEFT_RUNTIME_COMM_FLIGHT_RECORDER_H_
#define WEFT_RUNTIME_COMM_FLIGHT_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/comm/collective.h"
#include "runtime/comm/flight_clock.h"
#include "runtime/comm/issue_log.h"
#include "runtime/comm/ledger.h"

namespace weft {

// One operation of a communicator, as its rank saw it.
struct FlightEntry {
  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };

  uint64_t id = 0;        // from 1, in the order this rank issued them
  int group = 0;          // FlightGroup::id
  uint64_t sequence = 0;  // of the group's collectives, or of this member's send_recv batches
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  bool async = false;
  bool in_stream = false;  // of a device: begins when the stream has come to it, async or not
  int32_t root = 0;        // where the kind has one
  int64_t count = 0;  // elements: the one count, or the sum over the members; of send_recv, bytes both ways
  CommTag tag;
  uint64_t queue =
      0;  // of an async one: which thread or stream runs it, equal for those of one; 56 bits count
  State state = State::kQueued;
  int64_t issued_ns = 0;  // FlightClock; `begun_ns` and `ended_ns` are 0 until then
  int64_t begun_ns = 0;
  int64_t ended_ns = 0;

  bool operator==(const FlightEntry&) const = default;

  // "all_reduce(f32, sum, count 12)", "all_gather(bf16, count 4096)", "send_recv(96 bytes)".
  std::string Call() const;
};

// "queued", "running", "done", "failed".
absl::string_view FlightStateName(FlightEntry::State state);

// A group that a recorder knows. Members give their groups the same key, so that records can be compared.
struct FlightGroup {
  int id = 0;
  std::string name;              // "tp"
  std::vector<int> ranks;        // ascending
  int ordinal = 0;               // among the groups of these ranks that this rank has made
  uint64_t num_collectives = 0;  // issued so far
  bool closed = false;

  bool operator==(const FlightGroup&) const = default;

  // "tp[2,3]#0", of more than 16 ranks "dp[0-4095]#0" (RankSetText): the same on all members.
  std::string Key() const;
};

// Where in the model a rank computes: written by its thread, read by any.
struct FlightPlace {
  std::atomic<int32_t> path_id = 0;      // NamePath knows it
  std::atomic<int32_t> in_backward = 0;  // not 0: in a backward pass
};

// What a rank was doing when the record was taken.
struct FlightSnapshot {
  int64_t now_ns = 0;  // FlightClock of this process
  std::vector<FlightGroup> groups;
  std::vector<FlightEntry> entries;  // oldest first
  std::string activity;              // "data loader"; empty: none was told
  int64_t activity_ns = 0;
  uint64_t awaited =
      0;              // the id of the operation that the rank's thread waits for in Work::Wait; 0: for none
  std::string place;  // "forward of blocks.4"; empty: outside the model, or nobody tells
};

// A rank's last operations, in a ring: always on, so that a hang can be explained after the fact.
//
// Cost:    an operation writes one cache line pair when issued and one word when it begins and ends, all by
//          plain stores; the times are those that the ledger needs anyhow.
// Threads: Issue, SetActivity and SetAwaited by the owning rank; Begin and End by whoever runs the operation; the rest
//          any, at any time: an entry that is overwritten while it is read is left out.
// Source:  the "flight recorder" of PyTorch's ProcessGroupNCCL.
class FlightRecorder {
 public:
  static constexpr int kDefaultCapacity = 1024;

  // Keeps the last `capacity` operations, a power of two.
  explicit FlightRecorder(int capacity = kDefaultCapacity);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // A group that this rank has joined. Its communicator closes it; the last closed ones are kept for a while.
  struct OpenedGroup;
  OpenedGroup* OpenGroup(const std::string& name, const std::vector<int>& ranks);
  void CloseGroup(OpenedGroup* group);

  // Returns the entry's id. One that is neither async nor in a stream begins at once. The fields `id`,
  // `group`, `state`, `begun_ns` and `ended_ns` are not looked at.
  uint64_t Issue(OpenedGroup* group, const FlightEntry& entry);
  void Begin(uint64_t id, int64_t now_ns) { Store(id, &Slot::begun, now_ns); }
  void End(uint64_t id, int64_t now_ns, bool ok) { Store(id, &Slot::ended, ok ? now_ns : -now_ns); }

  // What the rank does between collectives, for "last seen: data loader". The characters are a literal, or those of
  // KeepActivity.
  void SetActivity(const char* activity) {
    activity_ns_.store(FlightClock(), std::memory_order_release);
    activity_.store(activity, std::memory_order_release);
  }

  // The same characters for as long as the recorder lives: for activities that are named while the program runs.
  const char* KeepActivity(const std::string& activity);

  // The rank's thread waits, from now on, until operation `id` has finished on a worker or a device; 0: for none any
  // more. Returns what was there before.
  uint64_t SetAwaited(uint64_t id) { return awaited_.exchange(id, std::memory_order_acq_rel); }

  // Each collective that is issued is written there too, until it is null; it lives so long.
  void set_issue_log(IssueLog* log) { issue_log_ = log; }

  // Where the rank computes is in `place` from now on; null: nobody tells. The place lives until it is replaced.
  void WatchPlace(const FlightPlace* place);
  void ForgetPlace(const FlightPlace* place);  // unless it has been replaced

  // The names behind CommTag's numbers.
  void NamePath(int32_t path_id, const std::string& name);
  void NamePurpose(uint8_t purpose, const std::string& name);

  // "blocks.2.attn.qkv, activation", as far as it is named; else "".
  std::string TagText(const CommTag& tag) const;

  FlightSnapshot Snapshot() const;

 private:
  // Words, not an entry: each is read and written whole. `id` is 0 while the rest changes.
  struct alignas(128) Slot {
    std::atomic<uint64_t> id = 0;
    std::atomic<uint64_t> what = 0;     // kind, dtype, op, async, in_stream, root
    std::atomic<uint64_t> where = 0;    // group, path
    std::atomic<uint64_t> purpose = 0;  // and queue
    std::atomic<uint64_t> sequence = 0;
    std::atomic<int64_t> count = 0;
    std::atomic<int64_t> issued = 0;
    std::atomic<int64_t> begun = 0;
    std::atomic<int64_t> ended = 0;  // below 0: failed
  };

  void Store(uint64_t id, std::atomic<int64_t> Slot::*member, int64_t value) {
    Slot& slot = slots_[id & mask_];
    if (slot.id.load(std::memory_order_relaxed) == id) (slot.*member).store(value, std::memory_order_release);
  }
  void LogIssue(const FlightGroup& group, const FlightEntry& entry);
  static bool Read(const Slot& slot, FlightEntry* entry);

  const uint64_t mask_;
  IssueLog* issue_log_ = nullptr;  // the owner's
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> num_issued_ = 0;
  std::atomic<const char*> activity_ = nullptr;
  std::atomic<int64_t> activity_ns_ = 0;
  std::atomic<uint64_t> awaited_ = 0;
  mutable std::mutex mutex_;
  std::map<int, std::unique_ptr<OpenedGroup>> groups_;  // by id
  std::deque<int> closed_;                              // of those
  std::map<std::vector<int>, int> num_opened_;
  int next_group_ = 0;
  const FlightPlace* place_ = nullptr;
  std::map<int32_t, std::string> paths_;
  std::set<std::string> activities_;
  std::map<uint8_t, std::string> purposes_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_FLIGHT_RECORDER_H_
