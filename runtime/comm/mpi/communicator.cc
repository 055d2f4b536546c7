#include "runtime/comm/mpi/communicator.h"

#include <utility>

#include "runtime/comm/mpi/run_collective.h"
#include "runtime/comm/mpi/run_send_recv.h"
#include "runtime/comm/queued_communicator.h"

namespace weft {
namespace {

class MpiCommunicator final : public QueuedCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiGroup> group, Ledger* ledger, WorkerPool* workers)
      : QueuedCommunicator(group->name(), group->member(), group->ranks(), ledger, workers),
        group_(std::move(group)) {}

  void Fail(absl::StatusCode code, const std::string& message) override { group_->Fail(code, message); }
  void SetInBackground() override {
    QueuedCommunicator::SetInBackground();
    group_->SetBlocksAtOnce();
  }

 protected:
  void Run(const CollectiveCall& call) override { RunMpiCollective(*group_, call); }
  void Run(const SendRecvCall& call) override { RunMpiSendRecv(*group_, call); }

  // Hears first what the peers have sent: a group that has failed elsewhere is entered no more.
  void ThrowIfFailed() const override {
    if (size() > 1) group_->transport().Poll();
    group_->ThrowIfFailed();
  }

  // The operation has waited for MPI already, or left it what it touches.
  [[noreturn]] void Leave() override { group_->Throw(); }

 private:
  const std::shared_ptr<MpiGroup> group_;
};

}  // namespace

std::shared_ptr<Communicator> MakeMpiCommunicator(const std::shared_ptr<MpiHub>& hub, const std::string& name,
                                                  const std::vector<int>& ranks, Ledger* ledger,
                                                  WorkerPool* workers) {
  return std::make_shared<MpiCommunicator>(hub->Join(name, ranks), ledger, workers);
}

}  // namespace weft
