#include "runtime/comm/communicator.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

int64_t Total(absl::Span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Elements before the piece of `rank`.
int64_t Offset(absl::Span<const int64_t> counts, int rank) { return Total(counts.first(rank)); }

std::vector<int64_t> ToVector(absl::Span<const int64_t> counts) { return {counts.begin(), counts.end()}; }
CollectiveDescriptor::Counts ToCounts(absl::Span<const int64_t> counts) {
  return {counts.begin(), counts.end()};
}

// The method that the checks below speak for. Its text is made on failure only: a small collective costs less
// than a string.
struct Where {
  const std::string& group;
  CollectiveKind kind;

  std::string Text() const { return absl::StrCat("group '", group, "': ", CollectiveName(kind), ": "); }
};

void CheckTensor(const Where& where, absl::string_view what, const Tensor& tensor) {
  WEFT_REQUIRE(tensor.defined(), where.Text(), what, " is undefined");
  WEFT_REQUIRE(tensor.IsContiguous(), where.Text(), what, " ", tensor.TypeString(),
               " is not contiguous; clone it, or pass a contiguous slice");
}

void CheckTensor(const Where& where, absl::string_view what, const Tensor& tensor, int64_t expected) {
  CheckTensor(where, what, tensor);
  WEFT_REQUIRE(tensor.num_elements() == expected, where.Text(), what, " ", tensor.TypeString(), " has ",
               tensor.num_elements(), " elements, expected ", expected);
}

void CheckSameDType(const Where& where, const Tensor& input, const Tensor& output) {
  WEFT_REQUIRE(input.dtype() == output.dtype(), where.Text(), "input is ", input.TypeString(), ", output ",
               output.TypeString(), ": the dtypes differ");
}

void CheckCounts(const Where& where, absl::string_view what, absl::Span<const int64_t> counts, int size) {
  WEFT_REQUIRE(static_cast<int>(counts.size()) == size, where.Text(), what, " has ", counts.size(),
               " numbers, expected one for each of the ", size, " members");
  for (int64_t count : counts) WEFT_REQUIRE(count >= 0, where.Text(), what, " holds ", count, ", below 0");
}

void CheckPeer(const Where& where, absl::string_view what, int peer, int size) {
  WEFT_REQUIRE(peer >= 0 && peer < size, where.Text(), what, " ", peer,
               " is not a group rank: the group has ", size, " members");
}

// `small` and `large` either do not overlap, or `small` begins `offset` elements into `large`; offset -1:
// they may not overlap at all.
void CheckOverlap(const Where& where, const Tensor& small, const Tensor& large, int64_t offset) {
  if (!(small.buffer() == large.buffer()) || small.num_bytes() == 0 || large.num_bytes() == 0) return;
  if (small.device().type == DeviceType::kMeta) return;
  const char* const a = static_cast<const char*>(small.data());
  const char* const b = static_cast<const char*>(large.data());
  if (a == b && offset == 0) return;
  if (a + small.num_bytes() <= b || b + large.num_bytes() <= a) return;
  WEFT_REQUIRE(offset >= 0, where.Text(), "input and output overlap");
  WEFT_REQUIRE(a == b + offset * ItemSize(large.dtype()), where.Text(),
               "input and output overlap, but not in the one place where this collective works in place");
}

}  // namespace

Work Communicator::AllReduce(const Tensor& input, const Tensor& output, ReduceOp op, CommOptions options) {
  const Where where{name_, CollectiveKind::kAllReduce};
  CheckTensor(where, "input", input);
  CheckTensor(where, "output", output, input.num_elements());
  CheckSameDType(where, input, output);
  CheckOverlap(where, output, input, 0);
  Operation operation;
  operation.descriptor.kind = CollectiveKind::kAllReduce;
  operation.descriptor.dtype = input.dtype();
  operation.descriptor.op = op;
  operation.descriptor.counts.push_back(input.num_elements());
  operation.input = input;
  operation.output = output;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::AllGather(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                             CommOptions options) {
  const Where where{name_, CollectiveKind::kAllGather};
  CheckCounts(where, "counts", counts, size());
  CheckTensor(where, "input", input, counts[rank_]);
  CheckTensor(where, "output", output, Total(counts));
  CheckSameDType(where, input, output);
  CheckOverlap(where, input, output, Offset(counts, rank_));
  Operation operation;
  operation.descriptor = {
      .kind = CollectiveKind::kAllGather, .dtype = input.dtype(), .counts = ToCounts(counts)};
  operation.input = input;
  operation.output = output;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::ReduceScatter(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                                 ReduceOp op, CommOptions options) {
  const Where where{name_, CollectiveKind::kReduceScatter};
  CheckCounts(where, "counts", counts, size());
  CheckTensor(where, "input", input, Total(counts));
  CheckTensor(where, "output", output, counts[rank_]);
  CheckSameDType(where, input, output);
  CheckOverlap(where, output, input, Offset(counts, rank_));
  Operation operation;
  operation.descriptor = {
      .kind = CollectiveKind::kReduceScatter, .dtype = input.dtype(), .op = op, .counts = ToCounts(counts)};
  operation.input = input;
  operation.output = output;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::AllToAll(const Tensor& input, absl::Span<const int64_t> send_counts, const Tensor& output,
                            absl::Span<const int64_t> receive_counts, CommOptions options) {
  const Where where{name_, CollectiveKind::kAllToAll};
  CheckCounts(where, "send_counts", send_counts, size());
  CheckCounts(where, "receive_counts", receive_counts, size());
  CheckTensor(where, "input", input, Total(send_counts));
  CheckTensor(where, "output", output, Total(receive_counts));
  CheckSameDType(where, input, output);
  CheckOverlap(where, output, input, -1);
  WEFT_REQUIRE(send_counts[rank_] == receive_counts[rank_], where.Text(), "this rank sends itself ",
               send_counts[rank_], " elements and expects ", receive_counts[rank_]);
  Operation operation;
  operation.descriptor = {
      .kind = CollectiveKind::kAllToAll, .dtype = input.dtype(), .counts = ToCounts(send_counts)};
  operation.input = input;
  operation.output = output;
  operation.receive_counts = ToVector(receive_counts);
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::Broadcast(const Tensor& tensor, int root, CommOptions options) {
  const Where where{name_, CollectiveKind::kBroadcast};
  CheckPeer(where, "root", root, size());
  CheckTensor(where, "tensor", tensor);
  Operation operation;
  operation.descriptor = {.kind = CollectiveKind::kBroadcast,
                          .dtype = tensor.dtype(),
                          .root = root,
                          .counts = {tensor.num_elements()}};
  operation.input = tensor;
  operation.output = tensor;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::Reduce(const Tensor& input, const Tensor& output, ReduceOp op, int root,
                          CommOptions options) {
  const Where where{name_, CollectiveKind::kReduce};
  CheckPeer(where, "root", root, size());
  CheckTensor(where, "input", input);
  if (rank_ == root) {
    CheckTensor(where, "output", output, input.num_elements());
    CheckSameDType(where, input, output);
    CheckOverlap(where, output, input, 0);
  }
  Operation operation;
  operation.descriptor = {.kind = CollectiveKind::kReduce,
                          .dtype = input.dtype(),
                          .op = op,
                          .root = root,
                          .counts = {input.num_elements()}};
  operation.input = input;
  if (rank_ == root) operation.output = output;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::Gather(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                          int root, CommOptions options) {
  const Where where{name_, CollectiveKind::kGather};
  CheckPeer(where, "root", root, size());
  CheckCounts(where, "counts", counts, size());
  CheckTensor(where, "input", input, counts[rank_]);
  if (rank_ == root) {
    CheckTensor(where, "output", output, Total(counts));
    CheckSameDType(where, input, output);
    CheckOverlap(where, input, output, Offset(counts, rank_));
  }
  Operation operation;
  operation.descriptor = {
      .kind = CollectiveKind::kGather, .dtype = input.dtype(), .root = root, .counts = ToCounts(counts)};
  operation.input = input;
  if (rank_ == root) operation.output = output;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::Scatter(const Tensor& input, const Tensor& output, absl::Span<const int64_t> counts,
                           int root, CommOptions options) {
  const Where where{name_, CollectiveKind::kScatter};
  CheckPeer(where, "root", root, size());
  CheckCounts(where, "counts", counts, size());
  CheckTensor(where, "output", output, counts[rank_]);
  if (rank_ == root) {
    CheckTensor(where, "input", input, Total(counts));
    CheckSameDType(where, input, output);
    CheckOverlap(where, output, input, Offset(counts, rank_));
  }
  Operation operation;
  operation.descriptor = {
      .kind = CollectiveKind::kScatter, .dtype = output.dtype(), .root = root, .counts = ToCounts(counts)};
  if (rank_ == root) operation.input = input;
  operation.output = output;
  operation.options = options;
  return Start(std::move(operation));
}

Work Communicator::SendRecv(absl::Span<const Message> sends, absl::Span<const Message> receives,
                            CommOptions options) {
  const Where where{name_, CollectiveKind::kSendRecv};
  std::vector<int64_t> to_self;
  std::vector<int64_t> from_self;
  for (const Message& send : sends) {
    CheckPeer(where, "receiver", send.peer, size());
    CheckTensor(where, "the tensor to send", send.tensor);
    if (send.peer == rank_) to_self.push_back(send.tensor.num_bytes());
  }
  for (const Message& receive : receives) {
    CheckPeer(where, "sender", receive.peer, size());
    CheckTensor(where, "the tensor to receive into", receive.tensor);
    if (receive.peer == rank_) from_self.push_back(receive.tensor.num_bytes());
  }
  WEFT_REQUIRE(to_self.size() == from_self.size(), where.Text(), "this rank sends itself ", to_self.size(),
               " messages and receives ", from_self.size(), " from itself in this batch");
  for (size_t i = 0; i < to_self.size(); ++i) {
    WEFT_REQUIRE(to_self[i] == from_self[i], where.Text(), "this rank sends itself ", to_self[i],
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
  entry.issued_ns = operation.issued_ns;
  return entry;
}

Work Communicator::Start(Operation&& operation) {
  // Counted only once the backend has accepted it: misuse found on this side leaves members' numbers equal.
  uint64_t& count = operation.descriptor.kind == CollectiveKind::kSendRecv ? num_batches_ : num_collectives_;
  operation.sequence = count + 1;
  operation.issued_ns = FlightClock();
  Ledger::Row* const row = RowOf(operation.descriptor.kind, operation.options.tag);
  operation.row = row;
  const int64_t num_bytes = LedgerBytesOf(operation);
  const uint64_t id = recorder_ == nullptr ? 0 : recorder_->Issue(recorded_group_, ToFlightEntry(operation));
  operation.flight_id = id;
  try {
    Work work = Submit(std::move(operation));
    ++count;
    if (row != nullptr) row->AddCall(num_bytes);
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
