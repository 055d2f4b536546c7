#include "runtime/comm/queued_communicator.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/packed_list.h"
#include "runtime/tensor/copy.h"

namespace weft {

QueuedCommunicator::~QueuedCommunicator() {
  if (worker_ != nullptr) worker_->Close();
}

void QueuedCommunicator::RequireMemory(CollectiveKind kind, const Tensor& tensor) const {
  if (!tensor.defined()) return;
  WEFT_REQUIRE(tensor.device().type != DeviceType::kMeta, "group '", name(), "': ", CollectiveName(kind),
               ": ", tensor.TypeString(), " is on meta, which has nothing to move");
}

bool QueuedCommunicator::IsStaged(const Operation& operation) const {
  bool is_away = false;
  operation.ForEachTensor(
      [&](const Tensor& tensor) { is_away |= tensor.defined() && tensor.device().type != DeviceType::kCpu; });
  return is_away;
}

// Mostly the group's own failure, which is first and stays. Anything else (no memory) left the peers waiting for this
// member, and perhaps reading its tensors.
void QueuedCommunicator::EndFor(const std::exception& error) {
  Fail(absl::StatusCode::kAborted,
       absl::StrCat("group '", name(), "': world rank ", ranks()[rank()], " failed: ", error.what()));
}

// All of its tensors are on the CPU.
void QueuedCommunicator::RunHere(const Operation& operation, const Running& running) {
  if (operation.descriptor.kind == CollectiveKind::kSendRecv) {
    SendRecvCall call = operation.ToSendRecvCall(running.timeout);
    call.turn = running.turn;
    Run(call);
  } else if (operation.parts.empty()) {
    CollectiveCall call = operation.ToCollectiveCall(running.timeout, running.all_entered_ns);
    call.turn = running.turn;
    Run(call);
  } else {
    std::vector<CollectiveCall> calls = operation.ToCollectiveCalls(running.timeout, running.all_entered_ns);
    for (CollectiveCall& call : calls) call.turn = running.turn;
    RunEach(operation.descriptor, calls);
  }
}

const std::shared_ptr<Allocator>& QueuedCommunicator::host_allocator() {
  if (host_allocator_ == nullptr) host_allocator_ = MakeCpuAllocator();
  return host_allocator_;
}

void QueuedCommunicator::RunEach(const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls) {
  // By a link of 1 Gbit/s this takes 2 ms; a meeting behind what another group sends takes as long and longer.
  constexpr int64_t kSmallBytes = 256 << 10;
  const PackedList packed(host_allocator(), calls, kSmallBytes);
  CollectiveDescriptor first = packed.calls()[0].descriptor;
  first.fingerprint = list.fingerprint;  // the counts of all parts, and what the list is of
  RunOrLeave([&] {
    Run(packed.calls()[0].Under(first));
    for (const CollectiveCall& call : packed.calls().subspan(1)) Run(call);
  });
  packed.Unpack();
}

// The copies wait for the device: peers must not read what is not there.
void QueuedCommunicator::RunStaged(const Operation& operation, const Running& running) {
  const std::shared_ptr<Allocator>& allocator = host_allocator();
  const auto empty_like = [&](const Tensor& tensor) {
    return tensor.defined() ? Tensor::Empty(allocator, tensor.dtype(), tensor.shape()) : Tensor();
  };
  const auto copy_of = [&](const Tensor& tensor) {
    return tensor.defined() ? CloneTensor(tensor, allocator) : Tensor();
  };
  Operation staged = operation;
  staged.input = copy_of(operation.input);
  // A broadcast works in place.
  const bool in_place = operation.descriptor.kind == CollectiveKind::kBroadcast;
  staged.output = in_place ? staged.input : empty_like(operation.output);
  for (Message& message : staged.sends) message.tensor = copy_of(message.tensor);
  for (Message& message : staged.receives) message.tensor = empty_like(message.tensor);
  for (Operation::Part& part : staged.parts) {
    part.input = copy_of(part.input);
    part.output = empty_like(part.output);
  }
  RunOrLeave([&] { RunHere(staged, running); });
  if (running.turn != nullptr) running.turn->End();  // what is left is this rank's
  for (size_t i = 0; i < staged.parts.size(); ++i) {
    CopyTensor(staged.parts[i].output, operation.parts[i].output);
  }
  if (operation.output.defined()) CopyTensor(staged.output, operation.output);
  for (size_t i = 0; i < staged.receives.size(); ++i) {
    CopyTensor(staged.receives[i].tensor, operation.receives[i].tensor);
  }
}

// An operation that failed has ended the group, so an error that nobody read is what ThrowIfFailed throws.
void QueuedCommunicator::Admit(const Operation& operation) const {
  const CollectiveKind kind = operation.descriptor.kind;
  operation.ForEachTensor([&](const Tensor& tensor) { RequireMemory(kind, tensor); });
  ThrowIfFailed();
}

Work QueuedCommunicator::Submit(Operation&& operation) {
  Worker* const given = operation.options.worker;
  // Alone, nothing is ever waited for.
  if (!operation.options.async || (size() == 1 && given == nullptr)) {
    int64_t begun_ns = operation.issued_ns;
    for (Worker* const worker : {worker_.get(), given_worker_}) {
      if (worker == nullptr || worker->idle()) continue;
      worker->WaitIdle();
      ThrowIfFailed();
      begun_ns = FlightClock();
    }
    std::atomic<int64_t> all_entered_ns = 0;
    const int64_t ended_ns = RunNow(operation, begun_ns, TimeoutOf(operation), &all_entered_ns);
    if (!operation.options.async) RecordExposed(operation, all_entered_ns, ended_ns);
    return Work();
  }
  if (given != nullptr) given_worker_ = given;
  if (given == nullptr && worker_ == nullptr) worker_ = workers_->Start();
  const std::chrono::milliseconds timeout = TimeoutOf(operation);
  Worker& worker = given != nullptr ? *given : *worker_;
  PeerWaitClock& waits = worker.peer_waits();
  return worker.Submit([self = shared_from_this(), operation = std::move(operation), timeout, &waits] {
    self->RunOnWorker(operation, timeout, waits);
  });
}

// Nobody can tell when the ends of messages have come. What a group that has ended does not begin has failed, too.
void QueuedCommunicator::RunOnWorker(const Operation& operation, std::chrono::milliseconds timeout,
                                     PeerWaitClock& waits) {
  try {
    ThrowIfFailed();
  } catch (const Error&) {
    RecordFailed(operation);
    throw;
  }
  const int64_t begun_ns = FlightClock();
  if (operation.descriptor.kind == CollectiveKind::kSendRecv) {
    RunNow(operation, begun_ns, timeout, /*all_entered_ns=*/nullptr);
    return;
  }
  waits.Begin(begun_ns);
  try {
    RunNow(operation, begun_ns, timeout, waits.all_entered_ns());
  } catch (...) {
    waits.End();
    throw;
  }
  waits.End();
}

// One that is not async the recorder lets begin at its call, which is so unless it had to wait.
int64_t QueuedCommunicator::RunNow(const Operation& operation, int64_t begun_ns,
                                   std::chrono::milliseconds timeout, std::atomic<int64_t>* all_entered_ns) {
  if (operation.options.async || begun_ns != operation.issued_ns) RecordBegun(operation, begun_ns);
  RecordRunning(begun_ns);
  std::optional<LinkTurns::Turn> turn;
  if (turns_ != nullptr && turns_->on()) turn.emplace(*turns_, priority_, links(), timeout);
  try {
    const Running running = {timeout, all_entered_ns, turn.has_value() ? &*turn : nullptr};
    if (IsStaged(operation)) {
      RunStaged(operation, running);
    } else {
      RunHere(operation, running);
    }
    turn.reset();
  } catch (const std::exception& error) {
    turn.reset();
    RecordStopped(FlightClock());
    RecordFailed(operation);
    EndFor(error);
    Leave();
  }
  const int64_t now_ns = FlightClock();
  RecordStopped(now_ns);
  RecordFinished(operation, begun_ns, now_ns);
  return now_ns;
}

bool RunsOnHost(const Communicator& group) {
  return dynamic_cast<const QueuedCommunicator*>(&group) != nullptr;
}

void TakeTurns(Communicator& group, std::shared_ptr<LinkTurns> turns, int priority) {
  auto* const queued = dynamic_cast<QueuedCommunicator*>(&group);
  if (queued != nullptr) queued->TakeTurns(std::move(turns), priority);
}

}  // namespace weft
