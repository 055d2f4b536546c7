#include "tests/parallel/scheduler/cuda_training.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/adamw.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using cuda_emulator::LeftOut;

class Chain : public Module {
 public:
  Chain() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(std::make_unique<Linear>(this, absl::StrCat("blocks.", i), kCudaDim, kCudaDim));
    }
  }

  std::vector<std::unique_ptr<Linear>> blocks;
  Parameter own{this, "own", {.shape = {kCudaDim, kCudaDim}, .initializer = Initializer::Normal(0, 0.3)}};

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = MatMul(x, own.Value());
    for (const std::unique_ptr<Linear>& block : blocks) y = Tanh((*block)(y));
    return MatMul(y, own.Value());
  }
};

}  // namespace

std::vector<CudaCase> CudaCases() {
  const Plan fsdp = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
  const Plan hsdp = {
      {"blocks.*", FullyShard("shard")}, {"", FullyShard("shard")}, {"", DataParallel("replica")}};
  return {{"ddp", "dp=2", {{"", DataParallel("dp")}}},
          {"zero1", "dp=2", {{"", DataParallel("dp", {.shard_state = true})}}},
          {"zero2", "dp=2", {{"", DataParallel("dp", {.shard_gradient = true})}}},
          {"fsdp", "dp=2", fsdp},
          {"hsdp", "replica=2,shard=2", hsdp}};
}

namespace {

// Losses and parameters.
std::vector<double> TrainOnRank(const CudaCase& of, bool overlap, int num_steps, World& world) {
  const DeviceMesh mesh = DeviceMesh::Parse(of.mesh);
  Chain model;
  Plan plan = of.plan;
  plan.set_scheduler({.bucket_mb = 0.0003, .prefetch = 1, .overlap = overlap});
  const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
  AdamW optimizer(model.AllParameters(), {});
  const auto loss_of = [&](int batch) {
    const Tensor rows = RandomF64({4, kCudaDim}, static_cast<uint64_t>(batch));
    const Layout by_rows = Layout(2, mesh.num_axes()).WithShard(0, 0);
    return Mean(Square(model(DTensor::Distribute(context, rows, by_rows))));
  };
  std::vector<double> mine;
  for (int step = 0; step < num_steps; ++step) {
    for (int part = 0; part < 2; ++part) {
      std::optional<NoSync> no_sync;
      if (part == 0) no_sync.emplace(context->state());
      const DTensor loss = loss_of(10 * step + part);
      Backward(loss);
      mine.push_back(loss.Item());
    }
    optimizer.Step(0.1);
    optimizer.ZeroGrad();
  }
  {
    // What was gathered ahead of the next step is read, too.
    const NoGradGuard no_grad(context->state());
    mine.push_back(loss_of(10 * num_steps).Item());
  }
  for (const Parameter* parameter : model.AllParameters()) {
    const Tensor whole = CloneTensor(parameter->at_rest().FullTensor(), MakeCpuAllocator());
    for (double element : whole.ToVector<double>()) mine.push_back(element);
  }
  return mine;
}

int NumRanks(const CudaCase& of) { return static_cast<int>(DeviceMesh::Parse(of.mesh).num_ranks()); }

}  // namespace

std::vector<double> TrainOnGpus(const CudaCase& of, bool overlap, int num_steps,
                                std::shared_ptr<FakeNccl> registering) {
  NcclOptions options = FastNcclOptions();
  options.register_memory = registering != nullptr;
  const auto fake = registering != nullptr ? registering : std::make_shared<FakeNccl>();
  std::vector<double> outcome;
  const auto train = [&](World& world) {
    std::vector<double> mine = TrainOnRank(of, overlap, num_steps, world);
    if (world.rank() == 0) outcome = std::move(mine);
  };
  RunNcclRanks(NumRanks(of), train, fake, std::chrono::minutes(2), {.tell = [](const std::string&) {}},
               {.fill_freed = true}, /*wrap_store=*/nullptr, options);
  return outcome;
}

std::vector<double> TrainOnCpus(const CudaCase& of, bool overlap, int num_steps) {
  std::vector<double> outcome;
  RunRanks(NumRanks(of), [&](World& world) {
    std::vector<double> mine = TrainOnRank(of, overlap, num_steps, world);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

bool HasOutcome(const CudaCase& of, const std::vector<double>& expected, int num_steps) {
  std::vector<double> outcome;
  const std::string error = MessageOf([&] { outcome = TrainOnGpus(of, /*overlap=*/true, num_steps); });
  return error == "no error" && outcome == expected;
}

namespace {

// Whether that wait orders something in run after run, and none shows that it is left out. A run in which it was not made, or
// ordered nothing since what it awaits had come by then, tells nothing: of a wait with several such runs no more is asked.
bool IsUnseen(const CudaCase& of, const std::vector<double>& expected, int num_steps, int64_t pair,
              int64_t nth) {
  constexpr int kMostOrdering = 10, kMostOthers = 3;
  for (int num_ordering = 0, num_others = 0; num_ordering < kMostOrdering;) {
    cuda_emulator::LeaveOutWaits(LeftOut::kWaitsOfFirst, pair, nth);
    if (!HasOutcome(of, expected, num_steps)) return false;
    const bool orders = cuda_emulator::NumLeftOut() > 0 && cuda_emulator::OrderingWaits(pair).at(nth);
    if (!orders && ++num_others == kMostOthers) return false;
    if (orders) ++num_ordering;
  }
  return true;
}

}  // namespace

std::vector<std::string> UnseenWaitsOfRank(const CudaCase& of, int64_t stride) {
  constexpr int kSteps = 2;
  cuda_emulator::LeaveOutWaits(LeftOut::kWaitsOfFirst, /*only=*/1000);
  const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/true, kSteps);
  std::vector<std::vector<bool>> orders;
  for (int64_t pair = 0; pair < cuda_emulator::NumWaitingPairs(); ++pair) {
    orders.push_back(cuda_emulator::OrderingWaits(pair));
  }
  std::vector<std::string> unseen;
  for (int64_t pair = 0; pair < std::ssize(orders); ++pair) {
    for (int64_t nth = 0; nth < std::ssize(orders[pair]); nth += stride) {
      if (!orders[pair][nth] || !IsUnseen(of, expected, kSteps, pair, nth)) continue;
      unseen.push_back(absl::StrCat("wait ", nth, " of ", orders[pair].size(), " for stream ", pair));
    }
  }
  cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
  return unseen;
}

}  // namespace weft
