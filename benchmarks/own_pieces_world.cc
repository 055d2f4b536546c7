#include "benchmarks/own_pieces_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/queued_communicator.h"

namespace weft {
namespace {

class OwnPieces final : public QueuedCommunicator {
 public:
  OwnPieces(const std::string& name, int rank, const std::vector<int>& ranks, Ledger* ledger,
            WorkerPool* workers)
      : QueuedCommunicator(name, rank, ranks, ledger, workers) {}

  void Fail(absl::StatusCode code, const std::string& message) override { failure_.Set(code, message); }

 protected:
  void Run(const CollectiveCall& call) override {
    NoteAllEntered(call);
    const int64_t item_size = ItemSize(call.descriptor.dtype);
    switch (call.descriptor.kind) {
      case CollectiveKind::kBarrier:
      case CollectiveKind::kBroadcast:
        return;
      case CollectiveKind::kAllReduce:
        return Copy(call.input, /*from=*/0, call.output, /*to=*/0, call.input.num_bytes());
      case CollectiveKind::kReduceScatter:
        return Copy(call.input, item_size * Begin(call, rank()), call.output, /*to=*/0,
                    call.output.num_bytes());
      case CollectiveKind::kAllGather:
        for (int member = 0; member < size(); ++member) {
          const int64_t num_bytes = item_size * call.descriptor.counts[member];
          Copy(call.input, /*from=*/0, call.output, item_size * Begin(call, member),
               std::min(num_bytes, call.input.num_bytes()));
        }
        return;
      default:
        Throw(absl::StatusCode::kUnimplemented, "own pieces: data parallelism does not ask for ",
              call.descriptor.ToString());
    }
  }
  void Run(const SendRecvCall& /*call*/) override {
    Throw(absl::StatusCode::kUnimplemented, "own pieces: there are no messages");
  }
  void ThrowIfFailed() const override { failure_.ThrowIfFailed(); }
  [[noreturn]] void Leave() override { failure_.Throw(); }

 private:
  // Elements before `member`'s piece.
  static int64_t Begin(const CollectiveCall& call, int member) {
    const auto& counts = call.descriptor.counts;
    int64_t begin = 0;
    for (int i = 0; i < member; ++i) begin += counts[i];
    return begin;
  }

  // An input may be its own place in the output, or the other way round.
  static void Copy(const Tensor& input, int64_t from, const Tensor& output, int64_t to, int64_t num_bytes) {
    if (num_bytes == 0) return;
    std::memmove(static_cast<char*>(output.data()) + to, static_cast<const char*>(input.data()) + from,
                 static_cast<size_t>(num_bytes));
  }

  GroupFailure failure_;
};

}  // namespace

std::shared_ptr<Communicator> OwnPiecesWorld::MakeGroup(const std::string& name,
                                                        const std::vector<int>& ranks) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  return std::make_shared<OwnPieces>(name, static_cast<int>(own - ranks.begin()), ranks, &ledger(),
                                     &workers());
}

}  // namespace weft
