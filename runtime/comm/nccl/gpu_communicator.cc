#include "runtime/comm/nccl/gpu_communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/comm/group_text.h"
#include "runtime/comm/nccl/run_collective.h"
#include "runtime/comm/nccl/wait.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/cuda/queue.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/tensor_stream.h"

namespace weft {
namespace {

void CopyBytes(const Tensor& from, const Tensor& to) {
  if (from.num_bytes() == 0 || from.data() == to.data()) return;
  if (from.device().type != DeviceType::kCuda || to.device().type != DeviceType::kCuda) {
    return CopyTensor(from, to);
  }
  CheckCuda(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(from.num_bytes()),
                            cudaMemcpyDeviceToDevice, CudaStreamOf(to).handle()),
            "cudaMemcpyAsync");
}

// NCCL divides what has wrapped in the tensors' own type.
bool NeedsWidening(const CollectiveDescriptor& descriptor) {
  const bool is_small = descriptor.dtype == DType::kI32 || descriptor.dtype == DType::kU8;
  return is_small && HasReduction(descriptor.kind) && descriptor.op == ReduceOp::kAvg;
}

}  // namespace

std::vector<Tensor> GpuCommunicator::TakeTensors(Operation* operation) {
  std::vector<Tensor> tensors;
  const auto take = [&](Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(std::exchange(tensor, Tensor()));
  };
  operation->ForEachTensor(take);
  return tensors;
}

std::vector<CudaStreamRef> GpuCommunicator::StreamsOf(const std::vector<Tensor>& tensors) const {
  std::vector<CudaStreamRef> streams;
  for (const Tensor& tensor : tensors) {
    const CudaStreamRef stream = CudaStreamOf(tensor);
    const auto is_same = [&](CudaStreamRef other) { return other.handle() == stream.handle(); };
    if (std::none_of(streams.begin(), streams.end(), is_same)) streams.push_back(stream);
  }
  return streams;
}

void GpuCommunicator::Admit(const Operation& operation) const {
  operation.ForEachTensor([&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    WEFT_REQUIRE(tensor.device().type != DeviceType::kMeta, "group '", name(),
                 "': ", CollectiveName(operation.descriptor.kind), ": ", tensor.TypeString(),
                 " is on meta, which has nothing to move");
    WEFT_REQUIRE(tensor.device().type != DeviceType::kCuda || tensor.device() == token_.device(), "group '",
                 name(), "': ", CollectiveName(operation.descriptor.kind), ": ", tensor.TypeString(),
                 " is on ", "cuda:", tensor.device().index, ", this rank's GPU is ",
                 "cuda:", token_.device().index);
  });
  failure_.ThrowIfFailed();
}

Work GpuCommunicator::Submit(Operation&& operation) {
  bool is_staged = false;
  operation.ForEachTensor([&](const Tensor& tensor) {
    is_staged |= tensor.defined() && tensor.device().type == DeviceType::kCpu;
  });
  if (size() == 1) return SubmitAlone(operation);
  if (is_staged) return SubmitStaged(operation);
  if (operation.descriptor.kind == CollectiveKind::kBarrier) {
    const std::shared_ptr<StreamWork> work = Issue(std::move(operation), /*want_work=*/true);
    while (!work->WaitFor(std::chrono::seconds(1))) continue;  // the monitor ends it
    const Lock lock(mutex_);
    Reap();
    return Work();
  }
  const bool async = operation.options.async;
  std::shared_ptr<StreamWork> work = Issue(std::move(operation), async);
  return async ? Work(std::move(work)) : Work();
}

// Every kind leaves the input in the output.
Work GpuCommunicator::SubmitAlone(const Operation& operation) {
  if (operation.input.defined() && operation.output.defined()) CopyBytes(operation.input, operation.output);
  for (const Operation::Part& part : operation.parts) CopyBytes(part.input, part.output);
  for (size_t i = 0; i < operation.sends.size(); ++i) {
    CopyBytes(operation.sends[i].tensor, operation.receives[i].tensor);
  }
  if (operation.options.async) RecordBegun(operation, operation.issued_ns);
  RecordFinished(operation, operation.issued_ns, FlightClock());
  return Work();
}

// The copies back wait for the device, which waits for the operation.
Work GpuCommunicator::SubmitStaged(const Operation& operation) {
  const auto away = [&](const Tensor& tensor, bool filled) {
    if (!tensor.defined() || tensor.device().type == DeviceType::kCuda) return tensor;
    return filled ? CloneTensor(tensor, hub_->allocator())
                  : Tensor::Empty(hub_->allocator(), tensor.dtype(), tensor.shape());
  };
  Operation staged = operation;
  staged.options.async = false;
  staged.input = away(operation.input, /*filled=*/true);
  const bool in_place = operation.descriptor.kind == CollectiveKind::kBroadcast;
  staged.output = in_place ? staged.input : away(operation.output, /*filled=*/false);
  for (Message& message : staged.sends) message.tensor = away(message.tensor, /*filled=*/true);
  for (Message& message : staged.receives) message.tensor = away(message.tensor, /*filled=*/false);
  for (Operation::Part& part : staged.parts) {
    part.input = away(part.input, /*filled=*/true);
    part.output = away(part.output, /*filled=*/false);
  }
  const Tensor output = staged.output;
  const std::vector<Message> receives = staged.receives;
  const std::vector<Operation::Part> parts = staged.parts;
  Submit(std::move(staged));
  for (size_t i = 0; i < parts.size(); ++i) CopyTensor(parts[i].output, operation.parts[i].output);
  if (operation.output.defined()) CopyTensor(output, operation.output);
  for (size_t i = 0; i < receives.size(); ++i) {
    CopyTensor(receives[i].tensor, operation.receives[i].tensor);
  }
  failure_.ThrowIfFailed();
  return Work();
}

// Its memory is the rank's, also within a lane's queue.
Communicator::Operation GpuCommunicator::Widened(const Operation& operation) {
  CudaQueue* const queue = cuda_.open_queue();
  if (queue != nullptr) queue->FollowRank();
  Operation widened = operation;
  widened.ForEachTensor([&](Tensor& tensor) {
    if (tensor.defined()) tensor = Tensor::Empty(hub_->allocator(), DType::kI64, tensor.shape());
  });
  if (queue != nullptr) queue->Keep(std::make_shared<const Operation>(widened));
  return widened;
}

void GpuCommunicator::CopyInStream(const Tensor& from, const Tensor& to) {
  if (!to.defined()) return;
  const CudaStreamScope scope(static_cast<CudaAllocator&>(*to.buffer()->allocator()), stream_.ref());
  CopyTensor(from, to);
}

// Events with times, for the ledger's seconds.
std::shared_ptr<CudaEvent> GpuCommunicator::TakeEvent() {
  if (free_events_.empty()) return std::make_shared<CudaEvent>(CudaEvent::Timing::kOn);
  std::shared_ptr<CudaEvent> event = std::move(free_events_.back());
  free_events_.pop_back();
  return event;
}

std::shared_ptr<StreamWork> GpuCommunicator::Issue(Operation&& operation, bool want_work) {
  const CollectiveDescriptor& descriptor = operation.descriptor;
  Operation stripped = operation;
  std::vector<Tensor> tensors = TakeTensors(&stripped);
  std::optional<Operation> widened;
  if (NeedsWidening(descriptor)) {
    widened = Widened(operation);
    Operation emptied = *widened;
    for (Tensor& tensor : TakeTensors(&emptied)) tensors.push_back(std::move(tensor));
  }
  const std::vector<CudaStreamRef> streams = StreamsOf(tensors);
  Lock lock(mutex_);
  failure_.ThrowIfFailed();
  Reap();
  if (descriptor.kind == CollectiveKind::kSendRecv) {
    log_.AddBatch(operation.sequence, rank(), operation.sends, operation.receives);
  } else {
    log_.AddCall(descriptor, operation.receive_counts);
  }
  const std::shared_ptr<CudaEvent> done = TakeEvent();
  pending_.push_back({std::move(stripped), TimeoutOf(operation), TakeEvent(), done});
  try {
    IssueCalls(lock, operation, widened, streams);
    done->Record(stream_.ref());
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    Suspect(Error(error.code(), absl::StrCat(OperationText(name(), descriptor.kind, operation.sequence), ": ",
                                             error.message())));
    AwaitEnd(lock);
    try {
      for (CudaStreamRef stream : streams) stream.WaitFor(*done);
    } catch (const Error&) {
      // The device has failed: nothing runs on it any more.
    }
    failure_.Throw();
  }
  Pending& pending = pending_.back();
  pending.issued = true;
  // What a lane's stream waits for costs the rank nothing yet.
  const bool in_queue = cuda_.open_queue() != nullptr;
  if (!want_work) {
    for (CudaStreamRef stream : streams) in_queue ? stream.WaitFor(*done) : stalls_->Wait(stream, done);
    return nullptr;
  }
  pending.work =
      std::make_shared<StreamWork>(done, streams, std::move(tensors), in_queue ? nullptr : stalls_);
  return pending.work;
}

void GpuCommunicator::IssueCalls(Lock& lock, const Operation& operation,
                                 const std::optional<Operation>& widened,
                                 const std::vector<CudaStreamRef>& streams) {
  for (CudaStreamRef stream : streams) {
    ready_.Record(stream);
    stream_.ref().WaitFor(ready_);
  }
  // Not for the rank's stream as it is now, which may wait for what peers do behind the barrier.
  if (operation.descriptor.kind == CollectiveKind::kBarrier) stream_.ref().WaitFor(token_is_free_);
  pending_.back().begun->Record(stream_.ref());
  const Operation& issued = widened.has_value() ? *widened : operation;
  if (widened.has_value()) {
    CopyInStream(operation.input, issued.input);
    for (size_t i = 0; i < issued.parts.size(); ++i) {
      CopyInStream(operation.parts[i].input, issued.parts[i].input);
    }
  }
  RegisterMemory(lock, issued);
  const NcclMember member = {*meeting_.comm, stream_.ref().handle(), rank(), size()};
  if (issued.descriptor.kind == CollectiveKind::kSendRecv) {
    IssueNcclSendRecv(member, issued.sends, issued.receives);
  } else {
    IssueNcclCollectives(member, issued.ToCollectiveCalls(TimeoutOf(operation)), token_);
  }
  AwaitIssued(lock);
  if (widened.has_value()) {
    CopyInStream(issued.output, operation.output);
    for (size_t i = 0; i < issued.parts.size(); ++i) {
      CopyInStream(issued.parts[i].output, operation.parts[i].output);
    }
  }
}

// All of it, also what barriers reduce and small blocks: NCCL wants the memory of a call registered on all members or on none,
// and to it a small block is registered where another one of its page is.
void GpuCommunicator::RegisterMemory(Lock& lock, const Operation& operation) {
  if (!hub_->options().register_memory) return;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor.defined() || tensor.num_bytes() == 0) return;
    const Buffer& buffer = *tensor.buffer();
    if (buffer.allocator().get() != &cuda_) return;  // nobody would tell when its block goes
    try {
      if (!meeting_.comm->Register(buffer.data(), PooledAllocator::BlockBytes(buffer.num_bytes()))) return;
    } catch (const Error& error) {
      return hub_->WarnOfRegistration(name(), error);
    }
    AwaitIssued(lock);
  };
  operation.ForEachTensor(add);
  if (operation.descriptor.kind == CollectiveKind::kBarrier) add(token_);
}

void GpuCommunicator::Suspect(Error error) {
  if (suspicion_.has_value()) return;
  suspicion_ = std::move(error);
  suspected_ns_ = FlightClock();
}

// The monitor finds the reason.
void GpuCommunicator::AwaitEnd(Lock& lock) {
  lock.unlock();
  hub_->Wake();
  lock.lock();
  ended_.wait(lock, [this] { return has_ended_; });
}

// NCCL may be connecting to peers, who may never come: then the monitor ends the group. Otherwise a thread of NCCL's launches the
// call, mostly before the shortest sleep would end: Linux lets a thread sleep for 50 us longer than it asks for.
void GpuCommunicator::AwaitIssued(Lock& lock) {
  constexpr std::chrono::microseconds kYields(50);
  const auto begun = std::chrono::steady_clock::now();
  NcclWait wait(*meeting_.comm, /*first=*/std::chrono::microseconds(1),
                /*longest=*/std::chrono::microseconds(200));
  while (!wait.Done()) {
    lock.unlock();
    if (std::chrono::steady_clock::now() - begun < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(wait.NextPause());
    }
    lock.lock();
    failure_.ThrowIfFailed();
  }
}

}  // namespace weft
