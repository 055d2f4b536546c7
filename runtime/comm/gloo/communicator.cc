#include "runtime/comm/gloo/communicator.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/gloo/group.h"
#include "runtime/comm/gloo/run_collective.h"
#include "runtime/comm/gloo/run_list.h"
#include "runtime/comm/gloo/run_send_recv.h"
#include "runtime/comm/packed_list.h"
#include "runtime/comm/queued_communicator.h"

namespace weft {
namespace {

class GlooCommunicator final : public QueuedCommunicator {
 public:
  GlooCommunicator(std::shared_ptr<GlooGroup> group, Ledger* ledger, WorkerPool* workers)
      : QueuedCommunicator(group->name(), group->rank(), group->ranks(), ledger, workers),
        group_(std::move(group)) {}

  ~GlooCommunicator() override { group_->Depart(); }

  void Fail(absl::StatusCode code, const std::string& message) override { group_->Fail(code, message); }
  void SetInBackground() override {
    QueuedCommunicator::SetInBackground();
    group_->SetBlocksAtOnce();
  }

 protected:
  void Run(const CollectiveCall& call) override {
    try {
      RunGlooCollective(*group_, call);
    } catch (const PeerLost& lost) {
      group_->FailLost(lost, group_->Where(call.descriptor.kind, call.sequence));
    }
  }

  void RunEach(const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls) override {
    // A message of its own costs a wake-up of Gloo's thread, about what it takes to copy this.
    constexpr int64_t kSmallBytes = 32 << 10;
    const PackedList packed(host_allocator(), calls, kSmallBytes);
    RunOrLeave([&] { RunPacked(list, packed.calls()); });
    packed.Unpack();
  }

  void Run(const SendRecvCall& call) override {
    try {
      RunGlooSendRecv(*group_, call);
    } catch (const PeerLost& lost) {
      group_->FailLost(lost, group_->Where(CollectiveKind::kSendRecv, call.sequence));
    }
  }

  uint32_t links() const override {
    return (group_->ring_peers().empty() ? 0 : kMemoryLink) |
           (group_->tcp_peers().empty() ? 0 : kNetworkLink);
  }

  void ThrowIfFailed() const override { group_->ThrowIfFailed(); }

  // Nobody else touches this member's tensors: bytes are copied into the rings by this member, and what Gloo
  // was given is taken back.
  [[noreturn]] void Leave() override { group_->Leave(); }

 private:
  void RunPacked(const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls) {
    // The sums are the same; this says what the list is of, too.
    if (calls.size() == 1) return Run(calls[0].Under(list));
    try {
      RunGlooList(*group_, list, calls);
    } catch (const PeerLost& lost) {
      group_->FailLost(lost, group_->Where(list.kind, calls[0].sequence));
    }
  }

  const std::shared_ptr<GlooGroup> group_;
};

}  // namespace

std::shared_ptr<Communicator> MakeGlooCommunicator(const std::shared_ptr<GlooHub>& hub,
                                                   const std::string& name, const std::vector<int>& ranks,
                                                   Ledger* ledger, WorkerPool* workers) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), hub->world_rank());
  WEFT_CHECK(found != ranks.end() && *found == hub->world_rank(), "rank ", hub->world_rank(),
             " is not a member");
  const int rank = static_cast<int>(found - ranks.begin());
  auto group = std::make_shared<GlooGroup>(hub, name, ranks, rank);
  hub->Add(group);
  return std::make_shared<GlooCommunicator>(std::move(group), ledger, workers);
}

}  // namespace weft
