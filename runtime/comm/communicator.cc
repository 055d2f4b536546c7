#include "runtime/comm/communicator.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/comm/argument_checks.h"

namespace weft {
namespace {

int64_t Total(absl::Span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Elements before the piece of `rank`.
int64_t Offset(absl::Span<const int64_t> counts, int rank) { return Total(counts.first(rank)); }

}  // namespace

// One member's side of a collective, as its caller gave it.
struct Communicator::Request {
  CollectiveKind kind = CollectiveKind::kBarrier;
  const Tensor& input;
  const Tensor& output;
  absl::Span<const int64_t> counts = {};          // of the kinds that have one per rank
  absl::Span<const int64_t> receive_counts = {};  // of an all-to-all
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

// What a member's buffers hold: nothing (it is not looked at), all elements, or this rank's piece of them.
struct Communicator::Buffers {
  enum Part : uint8_t { kNone, kWhole, kPiece };

  Part input = kWhole;
  Part output = kWhole;

  static Buffers Of(CollectiveKind kind, bool is_root) {
    switch (kind) {
      case CollectiveKind::kAllGather:
        return {.input = kPiece};
      case CollectiveKind::kGather:
        return {.input = kPiece, .output = is_root ? kWhole : kNone};
      case CollectiveKind::kReduceScatter:
        return {.output = kPiece};
      case CollectiveKind::kScatter:
        return {.input = is_root ? kWhole : kNone, .output = kPiece};
      case CollectiveKind::kReduce:
        return {.output = is_root ? kWhole : kNone};
      default:  // all-reduce, broadcast; all-to-all, which sends one whole and receives another
        return {};
    }
  }
};

void Communicator::Check(const Request& request, const Buffers& buffers) const {
  const CollectiveKind kind = request.kind;
  const ArgumentChecks checks(name_, kind, size());
  const bool has_input = buffers.input != Buffers::kNone;
  const bool has_output = buffers.output != Buffers::kNone;
  const Tensor& input = request.input;
  const Tensor& output = request.output;
  if (HasRoot(kind)) checks.RequirePeer("root", request.root);

  const bool has_one_count = HasOneCount(kind);
  const bool is_all_to_all = kind == CollectiveKind::kAllToAll;
  int64_t whole = 0;
  int64_t piece = 0;
  if (has_one_count) {  // the input says which
    checks.RequireTensor(kind == CollectiveKind::kBroadcast ? "tensor" : "input", input);
    whole = input.num_elements();
  } else {
    checks.RequireCounts(is_all_to_all ? "send_counts" : "counts", request.counts);
    if (is_all_to_all) checks.RequireCounts("receive_counts", request.receive_counts);
    whole = Total(request.counts);
    piece = request.counts[rank_];
    if (has_input) {
      checks.RequireTensor("input", input, buffers.input == Buffers::kPiece ? piece : whole);
    }
  }
  if (has_output) {
    const int64_t share = buffers.output == Buffers::kPiece ? piece : whole;
    checks.RequireTensor("output", output, is_all_to_all ? Total(request.receive_counts) : share);
  }
  if (has_input && has_output) {
    checks.RequireSameDType(input, output);
    const bool input_is_piece = buffers.input == Buffers::kPiece;
    const int64_t offset = has_one_count ? 0 : is_all_to_all ? -1 : Offset(request.counts, rank_);
    checks.RequireInPlace(input_is_piece ? input : output, input_is_piece ? output : input, offset);
  }
  if (is_all_to_all) {
    WEFT_REQUIRE(piece == request.receive_counts[rank_], checks.Where(), "this rank sends itself ", piece,
                 " elements and expects ", request.receive_counts[rank_]);
  }
}

void Communicator::FillPart(const Request& request, Part* to) const {
  const Buffers buffers = Buffers::Of(request.kind, rank_ == request.root);
  Check(request, buffers);
  const bool has_input = buffers.input != Buffers::kNone;
  Part& part = *to;
  if (has_input) part.input = request.input;
  if (buffers.output != Buffers::kNone) part.output = request.output;
  CollectiveDescriptor& descriptor = part.descriptor;
  descriptor.kind = request.kind;
  descriptor.dtype = has_input ? request.input.dtype() : request.output.dtype();
  descriptor.op = request.op;
  descriptor.root = request.root;
  if (HasOneCount(request.kind)) {
    descriptor.counts.push_back(request.input.num_elements());
  } else {
    descriptor.counts.assign(request.counts.begin(), request.counts.end());
  }
}

Work Communicator::Collect(const Request& request, const CommOptions& options) {
  Operation operation;
  FillPart(request, &operation);
  operation.receive_counts.assign(request.receive_counts.begin(), request.receive_counts.end());
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::AllReduce(const Tensor& input, const Tensor& output, ReduceOp op, CommOptions options) {
  return Collect({.kind = CollectiveKind::kAllReduce, .input = input, .output = output, .op = op}, options);
}

Work Communicator::AllGather(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                             CommOptions options) {
  return Collect({.kind = CollectiveKind::kAllGather, .input = input, .output = output, .counts = counts},
                 options);
}

Work Communicator::ReduceScatter(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                                 ReduceOp op, CommOptions options) {
  return Collect(
      {.kind = CollectiveKind::kReduceScatter, .input = input, .output = output, .counts = counts, .op = op},
      options);
}

Work Communicator::AllToAll(const Tensor& input, absl::Span<const int64_t> send_counts, const Tensor& output,
                            absl::Span<const int64_t> receive_counts, CommOptions options) {
  return Collect({.kind = CollectiveKind::kAllToAll,
                  .input = input,
                  .output = output,
                  .counts = send_counts,
                  .receive_counts = receive_counts},
                 options);
}

Work Communicator::Broadcast(const Tensor& tensor, int root, CommOptions options) {
  return Collect({.kind = CollectiveKind::kBroadcast, .input = tensor, .output = tensor, .root = root},
                 options);
}

Work Communicator::Reduce(const Tensor& input, const Tensor& output, ReduceOp op, int root,
                          CommOptions options) {
  return Collect({.kind = CollectiveKind::kReduce, .input = input, .output = output, .op = op, .root = root},
                 options);
}

Work Communicator::Gather(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                          int root, CommOptions options) {
  return Collect(
      {.kind = CollectiveKind::kGather, .input = input, .output = output, .counts = counts, .root = root},
      options);
}

Work Communicator::Scatter(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                           int root, CommOptions options) {
  return Collect(
      {.kind = CollectiveKind::kScatter, .input = input, .output = output, .counts = counts, .root = root},
      options);
}

// One part is the collective that it is.
Work Communicator::CollectEach(CollectiveKind kind, absl::Span<const CollectivePart> parts, ReduceOp op,
                               const CommOptions& options) {
  if (parts.empty()) return Work();
  Operation list;
  list.parts.reserve(parts.size());
  for (const CollectivePart& part : parts) {
    try {
      FillPart({.kind = kind, .input = part.input, .output = part.output, .counts = part.counts, .op = op},
               &list.parts.emplace_back());
    } catch (const Error& error) {
      Throw(error.code(), error.message(), " (part ", list.parts.size() - 1, " of the list)");
    }
    const CollectiveDescriptor& descriptor = list.parts.back().descriptor;
    const DType first = list.parts[0].descriptor.dtype;
    WEFT_REQUIRE(descriptor.dtype == first, "group '", name_, "': ", CollectiveName(kind), ": part ",
                 list.parts.size() - 1, " of the list is ", DTypeName(descriptor.dtype), ", the first is ",
                 DTypeName(first));
    list.descriptor.Append(descriptor);
  }
  if (parts.size() == 1) list = Operation(Part(std::move(list.parts[0])));
  list.options = options;
  return Start(std::move(list));
}

Work Communicator::AllReduceEach(absl::Span<const CollectivePart> parts, ReduceOp op, CommOptions options) {
  return CollectEach(CollectiveKind::kAllReduce, parts, op, options);
}

Work Communicator::AllGatherEach(absl::Span<const CollectivePart> parts, CommOptions options) {
  return CollectEach(CollectiveKind::kAllGather, parts, ReduceOp::kSum, options);
}

Work Communicator::ReduceScatterEach(absl::Span<const CollectivePart> parts, ReduceOp op,
                                     CommOptions options) {
  return CollectEach(CollectiveKind::kReduceScatter, parts, op, options);
}

Work Communicator::SendRecv(absl::Span<const Message> sends, absl::Span<const Message> receives,
                            CommOptions options) {
  const ArgumentChecks checks(name_, CollectiveKind::kSendRecv, size());
  std::vector<int64_t> to_self;
  std::vector<int64_t> from_self;
  for (const Message& send : sends) {
    checks.RequirePeer("receiver", send.peer);
    checks.RequireTensor("the tensor to send", send.tensor);
    if (send.peer == rank_) to_self.push_back(send.tensor.num_bytes());
  }
  for (const Message& receive : receives) {
    checks.RequirePeer("sender", receive.peer);
    checks.RequireTensor("the tensor to receive into", receive.tensor);
    if (receive.peer == rank_) from_self.push_back(receive.tensor.num_bytes());
  }
  WEFT_REQUIRE(to_self.size() == from_self.size(), checks.Where(), "this rank sends itself ", to_self.size(),
               " messages and receives ", from_self.size(), " from itself in this batch");
  for (size_t i = 0; i < to_self.size(); ++i) {
    WEFT_REQUIRE(to_self[i] == from_self[i], checks.Where(), "this rank sends itself ", to_self[i],
                 " bytes and receives them into ", from_self[i]);
  }
  if (sends.empty() && receives.empty()) return Work();
  Operation operation;
  operation.descriptor.kind = CollectiveKind::kSendRecv;
  operation.sends = {sends.begin(), sends.end()};
  operation.receives = {receives.begin(), receives.end()};
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::Send(const Tensor& tensor, int to, CommOptions options) {
  return SendRecv({{to, tensor}}, {}, options);
}

Work Communicator::Recv(const Tensor& tensor, int from, CommOptions options) {
  return SendRecv({}, {{from, tensor}}, options);
}

CollectiveCall Communicator::Operation::ToCollectiveCall(std::chrono::milliseconds timeout,
                                                         std::atomic<int64_t>* all_entered_ns) const {
  return {descriptor, input, output, receive_counts, sequence, timeout, all_entered_ns};
}

std::vector<CollectiveCall> Communicator::Operation::ToCollectiveCalls(
    std::chrono::milliseconds timeout, std::atomic<int64_t>* all_entered_ns) const {
  if (parts.empty()) return {ToCollectiveCall(timeout, all_entered_ns)};
  std::vector<CollectiveCall> calls;
  calls.reserve(parts.size());
  for (const Part& part : parts) {
    calls.push_back({part.descriptor, part.input, part.output, {}, sequence, timeout, all_entered_ns});
  }
  return calls;
}

SendRecvCall Communicator::Operation::ToSendRecvCall(std::chrono::milliseconds timeout) const {
  return {.sends = sends, .receives = receives, .sequence = sequence, .timeout = timeout};
}

void Communicator::Barrier() { Start(Operation()).Wait(); }

void Communicator::Abort(const std::string& reason) {
  Fail(absl::StatusCode::kAborted,
       absl::StrCat("group '", name_, "' was aborted by world rank ", ranks_[rank_], ": ", reason));
}

Communicator::~Communicator() {
  if (recorder_ != nullptr) recorder_->CloseGroup(recorded_group_);
}

void Communicator::set_flight_recorder(FlightRecorder* recorder) {
  if (recorder_ != nullptr) return;
  WEFT_CHECK(num_collectives_ + num_batches_ == 0, "group '", name_, "' is in use");
  recorder_ = recorder;
  recorded_group_ = recorder->OpenGroup(name_, ranks_);
}

FlightEntry Communicator::ToFlightEntry(const Operation& operation) const {
  const CollectiveDescriptor& descriptor = operation.descriptor;
  FlightEntry entry;
  entry.sequence = operation.sequence;
  entry.kind = descriptor.kind;
  entry.dtype = descriptor.dtype;
  entry.op = descriptor.op;
  entry.async = operation.options.async;
  entry.in_stream = in_stream();
  entry.root = descriptor.root;
  for (int64_t count : descriptor.counts) entry.count += count;
  for (const Message& message : operation.sends) entry.count += message.tensor.num_bytes();
  for (const Message& message : operation.receives) entry.count += message.tensor.num_bytes();
  entry.tag = operation.options.tag;
  if (entry.async) {
    const void* const worker = operation.options.worker;
    entry.queue = reinterpret_cast<uintptr_t>(worker != nullptr ? worker : this) & ((uint64_t{1} << 56) - 1);
  }
  entry.issued_ns = operation.issued_ns;
  return entry;
}

Work Communicator::Start(Operation&& operation) {
  WEFT_REQUIRE(operation.options.timeout.count() >= 0, "group '", name_,
               "': ", CollectiveName(operation.descriptor.kind), ": timeout is ",
               operation.options.timeout.count(), " ms, expected at least 0, which is the group's");
  operation.options.timeout = ClampTimeout(TimeoutOf(operation));
  Admit(operation);
  // Counted only once the backend has accepted it: misuse found on this side leaves members' numbers equal.
  uint64_t& count = operation.descriptor.kind == CollectiveKind::kSendRecv ? num_batches_ : num_collectives_;
  operation.sequence = count + 1;
  operation.issued_ns = FlightClock();
  if (operation.options.subject != 0) operation.descriptor.Mix(operation.options.subject);
  Ledger::Row* const row = operation.row = RowOf(operation.descriptor.kind, operation.options.tag);
  const int64_t num_bytes = LedgerBytesOf(operation);
  const uint64_t id = recorder_ == nullptr ? 0 : recorder_->Issue(recorded_group_, ToFlightEntry(operation));
  operation.flight_id = id;
  try {
    Work work = Submit(std::move(operation));
    ++count;
    if (row != nullptr) row->AddCall(num_bytes);
    work.SetOperation(recorder_, id);
    return work;
  } catch (...) {
    if (recorder_ != nullptr) recorder_->End(id, FlightClock(), /*ok=*/false);
    throw;
  }
}

// A map of its own, without a lock and with a number for a key: it costs less than the ledger's search.
Ledger::Row* Communicator::RowOf(CollectiveKind kind, const CommTag& tag) {
  if (ledger_ == nullptr) return nullptr;
  const uint64_t key = static_cast<uint64_t>(kind) | static_cast<uint64_t>(tag.purpose) << 8 |
                       static_cast<uint64_t>(static_cast<uint32_t>(tag.path_id)) << 32;
  Ledger::Row*& row = rows_[key];
  if (row == nullptr) row = ledger_->RowOf(kind, name_, tag);
  return row;
}

void Communicator::RecordBegun(const Operation& operation, int64_t now_ns) const {
  if (recorder_ != nullptr) recorder_->Begin(operation.flight_id, now_ns);
}

void Communicator::RecordRunning(int64_t now_ns) const {
  if (ledger_ != nullptr) ledger_->Begin(now_ns);
}

void Communicator::RecordStopped(int64_t now_ns) const {
  if (ledger_ != nullptr) ledger_->End(now_ns);
}

void Communicator::RecordExposed(const Operation& operation, int64_t all_entered_ns, int64_t now_ns) const {
  if (ledger_ == nullptr || !exposed_) return;
  const int64_t waited = all_entered_ns == 0 ? 0 : all_entered_ns - operation.issued_ns;
  ledger_->AddExposed(waited, now_ns - operation.issued_ns - waited);
}

void Communicator::RecordFailed(const Operation& operation) const {
  if (recorder_ != nullptr) recorder_->End(operation.flight_id, FlightClock(), /*ok=*/false);
}

// Of what this rank knows when it issues the call.
int64_t Communicator::LedgerBytesOf(const Operation& operation) const {
  switch (operation.descriptor.kind) {
    case CollectiveKind::kSendRecv: {
      int64_t num_bytes = 0;
      for (const Message& message : operation.receives) {
        if (message.peer != rank_) num_bytes += message.tensor.num_bytes();
      }
      return num_bytes;
    }
    case CollectiveKind::kAllToAll: {
      const int64_t count = Total(operation.receive_counts) - operation.receive_counts[rank_];
      return count * ItemSize(operation.descriptor.dtype);
    }
    default:
      return rank_ == 0 ? LedgerBytes(operation.descriptor, size()) : 0;
  }
}

void Communicator::RecordFinished(const Operation& operation, int64_t begun_ns, int64_t now_ns) const {
  if (recorder_ != nullptr) recorder_->End(operation.flight_id, now_ns, /*ok=*/true);
  if (operation.row != nullptr) operation.row->AddTime(now_ns - begun_ns);
}

}  // namespace weft
