#include "runtime/comm/local/communicator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/local/run_collective.h"
#include "runtime/comm/local/run_send_recv.h"

namespace weft {
namespace {

void RequireCpu(const std::string& group, CollectiveKind kind, const Tensor& tensor) {
  if (!tensor.defined()) return;
  WEFT_REQUIRE(tensor.device().type == DeviceType::kCpu, "group '", group, "': ", CollectiveName(kind), ": ",
               tensor.TypeString(), " is on ", DeviceTypeName(tensor.device().type),
               ", the local communicator moves cpu tensors alone");
}

// Queued operations share it, so it lives until the last of them is done, whatever its user does.
class LocalCommunicator final : public Communicator, public std::enable_shared_from_this<LocalCommunicator> {
 public:
  LocalCommunicator(std::shared_ptr<Hub> hub, int rank, const std::string& name,
                    const std::vector<int>& ranks, Ledger* ledger)
      : Communicator(name, rank, ranks, ledger),
        hub_(std::move(hub)),
        group_(hub_->Join(ranks[rank], name, ranks)) {}

  ~LocalCommunicator() override {
    if (worker_ != nullptr) worker_->Close();
  }

  void Abort(const std::string& reason) override {
    group_->Fail(absl::StatusCode::kAborted, absl::StrCat("group '", name(), "' was aborted by world rank ",
                                                          ranks()[rank()], ": ", reason));
  }

 protected:
  // An operation that failed has ended the group, so an error that nobody read is what ThrowIfFailed throws.
  Work Submit(Operation&& operation) override {
    const CollectiveKind kind = operation.descriptor.kind;
    RequireCpu(name(), kind, operation.input);
    RequireCpu(name(), kind, operation.output);
    for (const Message& message : operation.sends) RequireCpu(name(), kind, message.tensor);
    for (const Message& message : operation.receives) RequireCpu(name(), kind, message.tensor);
    group_->ThrowIfFailed();
    // Alone, nothing is ever waited for.
    if (!operation.options.async || size() == 1) {
      if (worker_ != nullptr && !worker_->idle()) {
        worker_->WaitIdle();
        group_->ThrowIfFailed();
      }
      Run(operation, timeout());
      return Work();
    }
    if (worker_ == nullptr) worker_ = hub_->StartWorker(ranks()[rank()]);
    return worker_->Submit(
        [self = shared_from_this(), operation = std::move(operation), timeout = timeout()] {
          self->group_->ThrowIfFailed();
          self->Run(operation, timeout);
        });
  }

 private:
  void Run(const Operation& operation, std::chrono::milliseconds timeout) {
    const auto begin = std::chrono::steady_clock::now();
    int64_t all_to_all_bytes = 0;
    try {
      if (operation.descriptor.kind == CollectiveKind::kSendRecv) {
        RunSendRecv(*group_, rank(), operation.sends, operation.receives, operation.sequence, timeout);
      } else {
        all_to_all_bytes = RunCollective(*group_, rank(),
                                         {.descriptor = operation.descriptor,
                                          .input = operation.input,
                                          .output = operation.output,
                                          .receive_counts = operation.receive_counts,
                                          .sequence = operation.sequence,
                                          .timeout = timeout});
      }
    } catch (const std::exception& error) {
      // Mostly the group's own failure, which is first and stays. Anything else (no memory) left the peers
      // waiting for this member, and perhaps reading its tensors.
      group_->Fail(absl::StatusCode::kAborted, absl::StrCat("group '", name(), "': world rank ",
                                                            ranks()[rank()], " failed: ", error.what()));
      group_->Leave(rank());
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    RecordFinished(operation, elapsed.count(), all_to_all_bytes);
  }

  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<Group> group_;
  std::shared_ptr<Worker> worker_;  // null until the first asynchronous operation
};

}  // namespace

std::shared_ptr<Communicator> MakeLocalCommunicator(std::shared_ptr<Hub> hub, int world_rank,
                                                    const std::string& name, const std::vector<int>& ranks,
                                                    Ledger* ledger) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), world_rank);
  WEFT_CHECK(found != ranks.end() && *found == world_rank, "rank ", world_rank, " is not a member");
  const int rank = static_cast<int>(found - ranks.begin());
  return std::make_shared<LocalCommunicator>(std::move(hub), rank, name, ranks, ledger);
}

}  // namespace weft
