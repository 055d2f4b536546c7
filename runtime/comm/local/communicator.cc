#include "runtime/comm/local/communicator.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/local/run_collective.h"
#include "runtime/comm/local/run_send_recv.h"
#include "runtime/comm/queued_communicator.h"

namespace weft {
namespace {

class LocalCommunicator final : public QueuedCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, Ledger* ledger, WorkerPool* workers)
      : QueuedCommunicator(group->name(), rank, group->ranks(), ledger, workers), group_(std::move(group)) {}

  void Fail(absl::StatusCode code, const std::string& message) override { group_->Fail(code, message); }
  void SetInBackground() override {
    QueuedCommunicator::SetInBackground();
    group_->SetBlocksAtOnce();
  }

 protected:
  void Run(const CollectiveCall& call) override { RunLocalCollective(*group_, rank(), call); }
  void RunEach(const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls) override {
    RunLocalCollectives(*group_, rank(), list, calls);
  }
  uint32_t links() const override { return kMemoryLink; }
  void Run(const SendRecvCall& call) override { RunLocalSendRecv(*group_, rank(), call); }
  void ThrowIfFailed() const override { group_->ThrowIfFailed(); }
  [[noreturn]] void Leave() override { group_->Leave(rank()); }

 private:
  const std::shared_ptr<LocalGroup> group_;
};

}  // namespace

std::shared_ptr<Communicator> MakeLocalCommunicator(const std::shared_ptr<LocalHub>& hub, int world_rank,
                                                    const std::string& name, const std::vector<int>& ranks,
                                                    Ledger* ledger, WorkerPool* workers) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), world_rank);
  WEFT_CHECK(found != ranks.end() && *found == world_rank, "rank ", world_rank, " is not a member");
  const int rank = static_cast<int>(found - ranks.begin());
  return std::make_shared<LocalCommunicator>(hub->Join(world_rank, name, ranks), rank, ledger, workers);
}

}  // namespace weft
