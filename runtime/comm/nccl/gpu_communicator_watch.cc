#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "runtime/comm/group_text.h"
#include "runtime/comm/nccl/gpu_communicator.h"

namespace weft {
namespace {

std::chrono::milliseconds ToMilliseconds(int64_t ns) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(ns));
}

// What goes wrong in `step`, on the device, in the store or for lack of memory, is not what ends the group, and keeps no other
// step back.
template <class Step>
void RunStep(const Step& step) noexcept {
  try {
    step();
  } catch (const std::exception&) {
  }
}

}  // namespace

// The events say how long an operation took, but not when. The host knows a time at which it was over, and
// maybe one at which it was under way: it began as late as both allow.
void GpuCommunicator::Reap() {
  std::erase_if(draining_, [](const auto& operation) { return operation.first->Test(); });
  while (!pending_.empty() && pending_.front().issued && pending_.front().done->Test()) {
    Pending& front = pending_.front();
    const double milliseconds = CudaEvent::MillisecondsBetween(*front.begun, *front.done);
    const int64_t took_ns = static_cast<int64_t>(milliseconds * 1e6);
    const int64_t latest_ns = FlightClock() - took_ns;
    const int64_t begun_ns = front.begun_ns > 0 ? std::min(front.begun_ns, latest_ns) : latest_ns;
    RecordBegun(front.operation, begun_ns);
    RecordFinished(front.operation, begun_ns, begun_ns + took_ns);
    log_.Done(front.operation.descriptor.kind, front.operation.sequence);
    if (front.work != nullptr) front.work->End(std::nullopt);
    front.work = nullptr;
    free_events_.push_back(std::move(front.begun));
    if (front.done.use_count() == 1) free_events_.push_back(std::move(front.done));
    pending_.pop_front();
  }
  RecordStalled(stalls_->TakeEnded(&free_events_));
  // Of lanes, in which groups run: whichever group looks first.
  RecordStalled(cuda_.queue_stalls().TakeEnded());
}

// The stream is the group's own: while the oldest lasts, no other has begun.
void GpuCommunicator::NoteBegun() {
  if (pending_.empty()) return;
  Pending& front = pending_.front();
  if (front.begun_ns > 0 || !front.begun->Test()) return;
  front.begun_ns = FlightClock();
  RecordBegun(front.operation, front.begun_ns);
}

void GpuCommunicator::End(Error error, bool tell) noexcept {
  try {
    if (failure_.Set(error.code(), error.message())) {
      const Lock lock(mutex_);
      EndOperations(error);
      if (tell && size() > 1) to_tell_ = std::move(error);
    }
    hub_->Wake();
  } catch (const std::exception&) {
    // No memory for the verdict, or no lock.
  }
}

// First the verdict, then the end: nobody takes what is cut off for done. NCCL frees memory when it aborts. For that it waits for
// everything on the device, also for kernels of other groups, whose peers may be gone. The monitor has to end those groups, so it
// does not wait here: a thread of its own does.
void GpuCommunicator::EndOperations(const Error& error) noexcept {
  std::optional<CudaDeviceGuard> guard;  // the watchdog's thread has no device
  RunStep([&] { guard.emplace(cuda_.device().index); });
  RunStep([&] { Reap(); });
  // Barriers touch no tensor.
  const bool spoils = std::any_of(pending_.begin(), pending_.end(), [](const Pending& pending) {
    return pending.operation.descriptor.kind != CollectiveKind::kBarrier;
  });
  if (spoils) RunStep([&] { hub_->NoteCutOff(error); });
  for (Pending& pending : pending_) {
    RunStep([&] {
      RecordFailed(pending.operation);
      if (pending.work != nullptr) pending.tensors = pending.work->End(error);
    });
  }
  cut_off_.swap(pending_);
  try {
    ender_ = std::thread([this] {
      AbortCutOff();
      const Lock lock(mutex_);
      NoteEnded();
    });
  } catch (const std::exception&) {  // no thread to be had
    AbortCutOff();
    NoteEnded();
  }
}

void GpuCommunicator::AbortCutOff() noexcept {
  std::optional<CudaDeviceGuard> guard;
  RunStep([&] { guard.emplace(cuda_.device().index); });
  if (meeting_.comm != nullptr) meeting_.comm->Abort();
  for (Pending& pending : cut_off_) {
    if (!pending.issued) RunStep([&] { pending.done->Record(stream_.ref()); });
  }
}

void GpuCommunicator::NoteEnded() noexcept {
  for (Pending& pending : cut_off_) {
    if (pending.tensors.empty()) continue;
    RunStep([&] { draining_.emplace_back(std::move(pending.done), std::move(pending.tensors)); });
  }
  cut_off_.clear();
  has_ended_ = true;
  ended_.notify_all();
}

void GpuCommunicator::AwaitEnded() noexcept {
  if (!failure_.failed()) return;
  Lock lock(mutex_);
  ended_.wait(lock, [this] { return has_ended_; });
}

GpuCommunicator::~GpuCommunicator() {
  EndNow();
  AwaitEnded();
  if (ender_.joinable()) ender_.join();
}

std::optional<NcclJudge::Late> GpuCommunicator::OldestLate(int64_t now_ns) {
  if (pending_.empty() || pending_.front().begun_ns == 0) return std::nullopt;
  const Pending& front = pending_.front();
  const auto waited = ToMilliseconds(now_ns - front.begun_ns);
  if (waited < std::min(hub_->options().late_after, front.timeout / 2)) return std::nullopt;
  const CollectiveDescriptor& descriptor = front.operation.descriptor;
  return NcclJudge::Late{.kind = descriptor.kind,
                         .sequence = front.operation.sequence,
                         .call = descriptor.kind == CollectiveKind::kSendRecv ? "" : descriptor.ToString(),
                         .waited = waited,
                         .timeout = front.timeout};
}

// A peer that is gone may still say why; it gets a moment. Any other error may come of calls that differ. Then the other members
// live, and their answers are worth a longer wait.
std::optional<Error> GpuCommunicator::ReasonOf(const Error& suspicion, std::chrono::milliseconds since,
                                               const CallLog& log) {
  const bool is_peer_gone = suspicion.code() == absl::StatusCode::kAborted;
  const bool is_over = since > (is_peer_gone ? NcclComm::kReasonTakes : 3 * hub_->options().patience);
  bool is_known = false;
  try {
    if (std::optional<Error> told = judge_.Announced()) return told;
    if (is_over) return suspicion;
    NcclJudge::Comparison comparison = judge_.Compare(log);
    if (comparison.difference.has_value()) return std::move(comparison.difference);
    is_known = comparison.is_final && !is_peer_gone;
  } catch (const Error&) {
    // Of the store: what is suspected is all there is.
  }
  if (!is_known && !is_over) return std::nullopt;
  return suspicion;
}

void GpuCommunicator::Look(const NcclHub::Round& round) noexcept {
  if (size() == 1) return;
  std::optional<NcclJudge::Late> late;
  try {
    Tell();
    CallLog log;
    std::optional<Error> suspicion;
    int64_t suspected_ns = 0;
    {
      const Lock lock(mutex_);
      try {
        Reap();
        NoteBegun();
      } catch (const Error& error) {
        Suspect(Error(error.code(), absl::StrCat("group '", name(), "': ", error.message())));
      }
      late = OldestLate(round.now_ns);
      if (!failure_.failed() && !suspicion_.has_value() && meeting_.comm->handle() != nullptr) {
        try {
          meeting_.comm->Poll();
        } catch (const Error& error) {
          Suspect(Error(error.code(), absl::StrCat("group '", name(), "': ", error.message())));
        }
      }
      suspicion = suspicion_;
      suspected_ns = suspected_ns_;
      if (round.call.has_value() || late.has_value() || suspicion.has_value()) log = log_.Told();
    }
    if (round.call.has_value()) RunStep([&] { judge_.Answer(*round.call, log); });
    if (failure_.failed()) return;
    if (suspicion.has_value()) {
      const auto since = ToMilliseconds(round.now_ns - suspected_ns);
      if (const std::optional<Error> reason = ReasonOf(*suspicion, since, log)) End(*reason, /*tell=*/true);
      return;
    }
    if (round.call.has_value()) {
      if (const std::optional<Error> told = judge_.Announced()) return End(*told, /*tell=*/false);
    }
    if (!late.has_value()) return judge_.NothingLate();
    if (const std::optional<Error> verdict = judge_.Judge(*late, log)) End(*verdict, /*tell=*/true);
  } catch (const std::exception& error) {
    // Of the store, which is no reason to end a group that works.
    if (!late.has_value() || late->waited < late->timeout) return;
    End(Error(absl::StatusCode::kDeadlineExceeded,
              absl::StrCat(WaitedText(OperationText(name(), late->kind, late->sequence), ranks()[rank()],
                                      late->timeout),
                           "who is missing cannot be found out: ", error.what())),
        /*tell=*/true);
  }
}

void GpuCommunicator::Tell() noexcept {
  const Lock tell_lock(tell_mutex_);
  try {
    std::optional<Error> to_tell;
    {
      const Lock lock(mutex_);
      to_tell = std::exchange(to_tell_, std::nullopt);
    }
    if (to_tell.has_value()) judge_.Announce(*to_tell);
  } catch (const std::exception&) {
    // Of the store: the others find out by their timeouts.
  }
}

void GpuCommunicator::TellLast() {
  if (size() == 1) return;
  CallLog log;
  {
    const Lock lock(mutex_);
    log = log_;
  }
  judge_.AnswerLast(log);
}

bool GpuCommunicator::TryLeave() noexcept {
  try {
    const Lock lock(mutex_);
    Reap();
    if (!pending_.empty() || !draining_.empty() || to_tell_.has_value()) return false;
    if (is_ending()) return false;
    if (meeting_.comm != nullptr && !meeting_.comm->TryLeave()) return false;
  } catch (const std::exception&) {
    return false;
  }
  if (size() == 1) return true;
  try {
    TellLast();  // the group is gone when the rank finishes
    judge_.Leave();
  } catch (const std::exception&) {
    // Of the store: a member that is still in a call of it finds out by its timeout.
  }
  return true;
}

void GpuCommunicator::TellEnded() noexcept {
  try {
    const Lock lock(mutex_);
    Reap();
  } catch (const std::exception&) {
    // Of the device: the monitor ends the group with it.
  }
}

// What is in the stream may still use the block, and the device would be waited for anyway before it takes one back. The monitor
// ends what a peer does not come to. What ends a group ends its registrations when NCCL lets go: before that they are not taken
// back one by one, since NCCL asks its peers for it, and waits until it is told to abort.
void GpuCommunicator::BlockGoes(const void* block) noexcept {
  constexpr std::chrono::microseconds kLongest(200);
  std::optional<CudaDeviceGuard> guard;
  for (std::chrono::microseconds pause(1);; pause = std::min(2 * pause, kLongest)) {
    {
      const Lock lock(mutex_);
      if (meeting_.comm == nullptr || !meeting_.comm->Knows(block)) return;
      RunStep([&] {
        if (!guard.has_value()) guard.emplace(cuda_.device().index);
        Reap();
      });
      if (pending_.empty() && !is_ending() && meeting_.comm->TryDeregister(block)) return;
    }
    std::this_thread::sleep_for(pause);
  }
}

bool GpuCommunicator::idle() {
  TellEnded();
  const Lock lock(mutex_);
  return pending_.empty() && !is_ending();
}

}  // namespace weft
