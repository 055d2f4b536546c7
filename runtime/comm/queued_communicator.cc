#include "runtime/comm/queued_communicator.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

QueuedCommunicator::~QueuedCommunicator() {
  if (worker_ != nullptr) worker_->Close();
}

void QueuedCommunicator::RequireCpu(CollectiveKind kind, const Tensor& tensor) const {
  if (!tensor.defined()) return;
  WEFT_REQUIRE(tensor.device().type == DeviceType::kCpu, "group '", name(), "': ", CollectiveName(kind), ": ",
               tensor.TypeString(), " is on ", DeviceTypeName(tensor.device().type),
               ", this communicator moves cpu tensors alone");
}

// An operation that failed has ended the group, so an error that nobody read is what ThrowIfFailed throws.
Work QueuedCommunicator::Submit(Operation&& operation) {
  const CollectiveKind kind = operation.descriptor.kind;
  RequireCpu(kind, operation.input);
  RequireCpu(kind, operation.output);
  for (const Message& message : operation.sends) RequireCpu(kind, message.tensor);
  for (const Message& message : operation.receives) RequireCpu(kind, message.tensor);
  ThrowIfFailed();
  // Alone, nothing is ever waited for.
  if (!operation.options.async || size() == 1) {
    if (worker_ != nullptr && !worker_->idle()) {
      worker_->WaitIdle();
      ThrowIfFailed();
    }
    RunNow(operation, timeout());
    return Work();
  }
  if (worker_ == nullptr) worker_ = workers_->Start();
  return worker_->Submit([self = shared_from_this(), operation = std::move(operation), timeout = timeout()] {
    self->ThrowIfFailed();
    self->RunNow(operation, timeout);
  });
}

void QueuedCommunicator::RunNow(const Operation& operation, std::chrono::milliseconds timeout) {
  int64_t begun_ns = operation.issued_ns;
  if (operation.options.async) {
    begun_ns = FlightClock();
    RecordBegun(operation, begun_ns);
  }
  int64_t all_to_all_bytes = 0;
  try {
    all_to_all_bytes = Run(operation, timeout);
  } catch (const std::exception& error) {
    RecordFailed(operation);
    // Mostly the group's own failure, which is first and stays. Anything else (no memory) left the peers
    // waiting for this member, and perhaps reading its tensors.
    Fail(absl::StatusCode::kAborted,
         absl::StrCat("group '", name(), "': world rank ", ranks()[rank()], " failed: ", error.what()));
    Leave();
  }
  RecordFinished(operation, begun_ns, FlightClock(), all_to_all_bytes);
}

}  // namespace weft
