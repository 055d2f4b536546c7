#ifndef WEFT_RUNTIME_COMM_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/base/reduce_op.h"
#include "runtime/comm/collective.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/ledger.h"
#include "runtime/comm/work.h"
#include "runtime/tensor/tensor.h"

namespace weft {

class Worker;

// Per call: how to run it and what to write in the ledger.
struct CommOptions {
  bool async = false;  // true: return at once, the Work finishes later
  CommTag tag = {};
  // Of an async operation on CPU tensors: the thread that runs it, behind what it has to do already; null: one
  // of the communicator's own. Outlives the communicator's work. One thread per communicator.
  Worker* worker = nullptr;
  // What it is of, as a number of the caller's: members that give different ones disagree, as they do with different
  // counts. 0: nothing is said. Not of SendRecv, nor, on `local`, of kinds with a root; NCCL compares what members have called
  // only once something is late.
  uint32_t subject = 0;
  // How long this call waits for the other members; 0: as long as the group's calls do (set_timeout).
  std::chrono::milliseconds timeout = std::chrono::milliseconds(0);
};

// A group of ranks that exchange tensors: the contract that every backend meets (`local`, and later others).
//
// Members enter the same collectives in the same order; a disagreement (kind, dtype, reduction, counts, root)
// throws InvalidArgument on every member, naming both sides. Members that disagree have lost step, so the
// group is dead then: what came after would pair the wrong calls. Results are the same bits on every member
// and in every run: reductions combine group ranks in ascending order, bf16 and f16 in float with one final
// rounding. A group of one works and moves nothing. Buffers are contiguous; they may be empty. An output
// overlaps the input only where a method says so, and is then at exactly that place. Operations on one group
// run in the order they were issued, blocking and asynchronous alike.
//
// Units:   counts are elements.
// Threads: called by the owning rank's thread only.
// Errors:  InvalidArgument for misuse, before anything moves; DeadlineExceeded after the timeout of the call, naming
//          group, call, sequence number, timeout and missing ranks (TimeoutText); Aborted when a peer has failed. After either
//          of the last two, or a disagreement, the group is dead, and every later call throws that error at
//          once. Misuse that this side finds alone leaves the group as it was.
class Communicator {
 public:
  virtual ~Communicator();

  int rank() const { return rank_; }  // in this group
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  // world ranks of the members, by group rank
  const std::string& name() const { return name_; }         // for errors and the ledger: "dp"

  // Every member gets the reduction of all `input`s. `output` may be `input`.
  // Shape:  input, output: same count on all members.
  // Cost:   ledger 2(n-1)S.
  Work AllReduce(const Tensor& input, const Tensor& output, ReduceOp op, CommOptions options = {});

  // Concatenates the members' inputs by group rank.
  // Shape: input counts[rank], output sum(counts); `input` may be its place in the output.
  // Cost:  ledger (n-1)S, S the output's bytes.
  Work AllGather(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                 CommOptions options = {});

  // Reduces the members' inputs and leaves piece r with member r.
  // Shape: input sum(counts), output counts[rank]; `output` may be its place in the input.
  // Cost:  ledger (n-1)S, S the input's bytes.
  Work ReduceScatter(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts, ReduceOp op,
                     CommOptions options = {});

  // Sends piece r of the input to member r, and lays what arrives in member order.
  // Shape:  input sum(send_counts), output sum(receive_counts); receive_counts[s] here is send_counts[here]
  //         of s.
  // Cost:   ledger: the bytes received from others, recorded by each receiver.
  Work AllToAll(const Tensor& input, absl::Span<const int64_t> send_counts, const Tensor& output,
                absl::Span<const int64_t> receive_counts, CommOptions options = {});

  // Copies the root's tensor to everyone, in place.
  // Cost:   ledger (n-1)S.
  Work Broadcast(const Tensor& tensor, int root, CommOptions options = {});

  // The root gets the reduction; other members' `output` is not looked at. `output` may be `input`.
  // Cost: ledger (n-1)S.
  Work Reduce(const Tensor& input, const Tensor& output, ReduceOp op, int root, CommOptions options = {});

  // The root gets the concatenation; other members' `output` is not looked at. The root's `input` may be its
  // place in the output.
  // Cost:   ledger S less the root's piece.
  Work Gather(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts, int root,
              CommOptions options = {});

  // Member r gets piece r of the root's input; other members' `input` is not looked at. The root's `output`
  // may be its place in the input.
  // Cost:   ledger S less the root's piece.
  Work Scatter(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts, int root,
               CommOptions options = {});

  // Several all-reduces, all-gathers or reduce-scatters as one operation: one number, one entry of ledger and
  // flight recorder, one wait. Parts are of one dtype; each goes straight from its input to its output, with the
  // bits that it would have alone. No part's memory overlaps another's. Nothing happens for an empty list.
  // Cost: ledger the sum of the parts'.
  Work AllReduceEach(absl::Span<const CollectivePart> parts, ReduceOp op, CommOptions options = {});
  Work AllGatherEach(absl::Span<const CollectivePart> parts, CommOptions options = {});
  Work ReduceScatterEach(absl::Span<const CollectivePart> parts, ReduceOp op, CommOptions options = {});

  // Point to point, unlike the rest: only the two ends of each message take part. All messages of the batch
  // progress together, so an exchange cannot deadlock; between two ranks, messages match in the order issued.
  // What a rank sends to itself it receives in the same batch. Batches run in the order issued: of two ranks that
  // both receive before they send, in batches of their own, neither comes to its send. Edges has no such order.
  // Errors: InvalidArgument on both ends if the byte counts of a pair differ; the group is dead then.
  // Cost:   ledger: the bytes received from others, recorded by the receiver.
  Work SendRecv(absl::Span<const Message> sends, absl::Span<const Message> receives,
                CommOptions options = {});
  Work Send(const Tensor& tensor, int to, CommOptions options = {});
  Work Recv(const Tensor& tensor, int from, CommOptions options = {});

  // Returns when every member has entered it.
  void Barrier();

  // Ends the group at once: members waiting in it, here or elsewhere, throw Aborted with `reason`. Any
  // thread.
  void Abort(const std::string& reason);

  // Ends the group, unless it has ended: every later call throws this error, as does a thread that waits in
  // it on this rank; members on other ranks throw it, or Aborted with this rank's name. Any thread.
  virtual void Fail(absl::StatusCode code, const std::string& message) = 0;

  // Before the first operation. From now on it serves what runs beside the rank's thread: what its operations wait on the
  // CPU is no exposed communication, and they take no core from threads that compute while they wait.
  virtual void SetInBackground() { exposed_ = false; }

  // How long a member waits for the others in calls that do not say. Default 10 minutes; above 0.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Where the operations are recorded from now on; it outlives the communicator and all of its work. Before
  // the first operation; the first recorder stays.
  void set_flight_recorder(FlightRecorder* recorder);

 protected:
  // One collective, checked on this side. It owns references to its buffers.
  struct Part {
    CollectiveDescriptor descriptor;
    Tensor input;
    Tensor output;
  };

  // One operation, ready to run.
  struct Operation : Part {
    Operation() = default;
    explicit Operation(Part part) : Part(std::move(part)) {}

    std::vector<int64_t> receive_counts;  // all-to-all; its send counts are descriptor.counts
    std::vector<Message> sends;
    std::vector<Message> receives;
    // Of a list: its parts; `descriptor` then has the sums of their counts, and there is no input or output.
    std::vector<Part> parts;
    CommOptions options;
    uint64_t sequence = 0;   // from 1: ordinal of the collective on this group, or SendRecv of this member
    int64_t issued_ns = 0;   // FlightClock
    uint64_t flight_id = 0;  // the recorder's, if there is one
    Ledger::Row* row = nullptr;  // the ledger's, if there is one

    // Calls `visit` with each tensor that the operation touches; some may be undefined.
    template <class Visit>
    void ForEachTensor(const Visit& visit) {
      visit(input);
      visit(output);
      for (Part& part : parts) visit(part.input), visit(part.output);
      for (Message& message : sends) visit(message.tensor);
      for (Message& message : receives) visit(message.tensor);
    }
    template <class Visit>
    void ForEachTensor(const Visit& visit) const {
      const_cast<Operation*>(this)->ForEachTensor([&](const Tensor& tensor) { visit(tensor); });
    }

    // What a backend runs: all but a SendRecv, and a SendRecv. They view the operation. Of a list, each part is
    // a call.
    // `all_entered_ns`: as in CollectiveCall.
    CollectiveCall ToCollectiveCall(std::chrono::milliseconds timeout,
                                    std::atomic<int64_t>* all_entered_ns = nullptr) const;
    std::vector<CollectiveCall> ToCollectiveCalls(std::chrono::milliseconds timeout,
                                                  std::atomic<int64_t>* all_entered_ns = nullptr) const;
    SendRecvCall ToSendRecvCall(std::chrono::milliseconds timeout) const;
  };

  Communicator(std::string name, int rank, std::vector<int> ranks, Ledger* ledger)
      : name_(std::move(name)), rank_(rank), ranks_(std::move(ranks)), ledger_(ledger) {}

  // Refuses what the backend cannot run, before the operation counts as issued: other members wait for a rank that has been
  // refused, and the watchdog must see it.
  // Errors: InvalidArgument, which leaves the group as it was; what has ended the group.
  virtual void Admit(const Operation& /*operation*/) const {}

  // Runs `operation`, which has been admitted, now (not async) or later; takes it if later. A backend records what becomes of
  // it: that it begins, if later, and its end.
  virtual Work Submit(Operation&& operation) = 0;

  // How long `operation` waits for the other members.
  std::chrono::milliseconds TimeoutOf(const Operation& operation) const {
    return operation.options.timeout.count() > 0 ? operation.options.timeout : timeout_;
  }

  // Whether operations begin later in any case: when a device's stream has come to them.
  virtual bool in_stream() const { return false; }

  // Times are FlightClock's; any thread. The operation's tensors are not looked at.
  void RecordBegun(const Operation& operation, int64_t now_ns) const;
  void RecordFinished(const Operation& operation, int64_t begun_ns, int64_t now_ns) const;
  void RecordFailed(const Operation& operation) const;
  // Of operations that a thread of this process runs: between which times one ran, and, if the rank's thread
  // waited for it from the call on, when all had entered (0: nobody knows).
  void RecordRunning(int64_t now_ns) const;
  void RecordStopped(int64_t now_ns) const;
  void RecordExposed(const Operation& operation, int64_t all_entered_ns, int64_t now_ns) const;
  // Of operations in a device's streams: for how long the rank's stream has stood still, whatever for.
  void RecordStalled(int64_t nanoseconds) const {
    if (ledger_ != nullptr) ledger_->AddExposed(/*waiting_ns=*/0, nanoseconds);
  }

 private:
  struct Request;
  struct Buffers;
  // Errors: InvalidArgument if the request does not fit itself or the group.
  void Check(const Request& request, const Buffers& buffers) const;
  // Checks `request`, and makes a collective of it in `to`, which is new.
  void FillPart(const Request& request, Part* to) const;
  // The one way of all collectives: checks, records and runs it.
  Work Collect(const Request& request, const CommOptions& options);
  Work CollectEach(CollectiveKind kind, absl::Span<const CollectivePart> parts, ReduceOp op,
                   const CommOptions& options);
  Work Start(Operation&& operation);
  FlightEntry ToFlightEntry(const Operation& operation) const;
  // What this rank's ledger counts for `operation`.
  int64_t LedgerBytesOf(const Operation& operation) const;
  Ledger::Row* RowOf(CollectiveKind kind, const CommTag& tag);

  std::string name_;
  int rank_;
  std::vector<int> ranks_;
  bool exposed_ = true;
  Ledger* ledger_;                                    // may be null; outlives the communicator
  absl::flat_hash_map<uint64_t, Ledger::Row*> rows_;  // of the ledger, by kind and tag
  FlightRecorder* recorder_ = nullptr;                // likewise
  FlightRecorder::OpenedGroup* recorded_group_ = nullptr;
  std::chrono::milliseconds timeout_ = std::chrono::minutes(10);
  uint64_t num_collectives_ = 0;
  uint64_t num_batches_ = 0;  // apart, since only two ends take part: members' collective numbers stay equal
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_COMMUNICATOR_H_
