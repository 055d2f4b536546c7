// Training steps under plans that gather ahead and reduce in buckets, on emulated GPUs over a fake NCCL: what runs
// beside the rank's stream gives the bits of what it waits for at once.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/scheduler/task_graph.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using cuda_emulator::LeftOut;

constexpr int64_t kDim = 6;

class Chain : public Module {
 public:
  Chain() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(std::make_unique<Linear>(this, absl::StrCat("blocks.", i), kDim, kDim));
    }
  }

  std::vector<std::unique_ptr<Linear>> blocks;
  Parameter own{this, "own", {.shape = {kDim, kDim}, .initializer = Initializer::Normal(0, 0.3)}};

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = MatMul(x, own.Value());
    for (const std::unique_ptr<Linear>& block : blocks) y = Tanh((*block)(y));
    return MatMul(y, own.Value());
  }
};

struct Case {
  const char* name;
  const char* mesh;
  Plan plan;
};

std::vector<Case> Cases() {
  return {{"ddp", "dp=2", {{"", DataParallel("dp")}}},
          {"zero1", "dp=2", {{"", DataParallel("dp", {.shard_state = true})}}},
          {"zero2", "dp=2", {{"", DataParallel("dp", {.shard_gradient = true})}}},
          {"fsdp", "dp=2", {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}}},
          {"hsdp",
           "replica=2,shard=2",
           {{"blocks.*", FullyShard("shard")}, {"", FullyShard("shard")}, {"", DataParallel("replica")}}}};
}

// Losses and parameters of rank 0 after `num_steps` steps of two microbatches. Memory that is given back turns to NaN.
std::vector<double> Train(const Case& of, bool overlap, int num_steps = 4) {
  std::vector<double> outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(of.mesh);
  const auto train = [&](World& world) {
    Chain model;
    Plan plan = of.plan;
    plan.set_scheduler({.bucket_mb = 0.0003, .prefetch = 1, .overlap = overlap});
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    AdamW optimizer(model.AllParameters(), {});
    std::vector<double> mine;
    for (int step = 0; step < num_steps; ++step) {
      for (int part = 0; part < 2; ++part) {
        std::optional<NoSync> no_sync;
        if (part == 0) no_sync.emplace(context->state());
        const Tensor rows = RandomF64({4, kDim}, static_cast<uint64_t>(10 * step + part));
        const Layout by_rows = Layout(2, mesh.num_axes()).WithShard(0, 0);
        const DTensor loss = Mean(Square(model(DTensor::Distribute(context, rows, by_rows))));
        Backward(loss);
        mine.push_back(loss.Item());
      }
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
    }
    for (const Parameter* parameter : model.AllParameters()) {
      const Tensor whole = CloneTensor(parameter->at_rest().FullTensor(), MakeCpuAllocator());
      for (double element : whole.ToVector<double>()) mine.push_back(element);
    }
    if (world.rank() == 0) outcome = std::move(mine);
  };
  RunNcclRanks(static_cast<int>(mesh.num_ranks()), train, std::make_shared<FakeNccl>(),
               std::chrono::minutes(2), {.tell = [](const std::string&) {}}, {.fill_freed = true});
  return outcome;
}

// Whether training with overlap ends without an error, and in these numbers.
bool HasOutcome(const Case& of, const std::vector<double>& expected) {
  std::vector<double> outcome;
  const std::string error = MessageOf([&] { outcome = Train(of, /*overlap=*/true); });
  return error == "no error" && outcome == expected;
}

TEST(CudaSchedulerTest, OverlapChangesNoBit) {
  for (const Case& of : Cases()) {
    const std::vector<double> expected = Train(of, /*overlap=*/false);
    ASSERT_GT(expected.size(), 8u);
    EXPECT_GT(std::abs(expected[6] - expected[0]), 1e-4) << of.name << ": the steps change nothing";
    EXPECT_EQ(Train(of, /*overlap=*/true), expected) << of.name;
  }
}

// What streams wait for each other for: neither can be left out under any plan.
TEST(CudaSchedulerTest, WaitsLeftOutAreSeen) {
  for (const Case& of : Cases()) {
    const std::vector<double> expected = Train(of, /*overlap=*/true);
    for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
      EXPECT_TRUE(
          cuda_emulator::ShowsInSomeRun(waits, /*only=*/-1, [&] { return !HasOutcome(of, expected); }))
          << of.name << (waits == LeftOut::kWaitsOfFirst ? ": of the rank's stream" : ": of lanes' streams");
      EXPECT_GT(cuda_emulator::NumLeftOut(), 0) << of.name;
      cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    }
  }
}

// What the rank's stream waits for of each other one, of lanes and of the group of blocking collectives, and what lanes and
// groups wait for of the rank's stream and of each other.
TEST(CudaSchedulerTest, WaitsForEachStreamLeftOutAreSeen) {
  for (const Case& of : Cases()) {
    const std::vector<double> expected = Train(of, /*overlap=*/true);
    for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
      cuda_emulator::LeaveOutWaits(waits, /*only=*/1000);
      EXPECT_EQ(Train(of, /*overlap=*/true), expected) << of.name;
      const int64_t num_pairs = cuda_emulator::NumWaitingPairs();
      EXPECT_GT(num_pairs, 1) << of.name;
      for (int64_t only = 0; only < num_pairs; ++only) {
        EXPECT_TRUE(cuda_emulator::ShowsInSomeRun(waits, only, [&] { return !HasOutcome(of, expected); }))
            << of.name << (waits == LeftOut::kWaitsOfFirst ? ", of the rank's stream" : ", of lanes' streams")
            << ", stream " << only << " of " << num_pairs;
        EXPECT_GT(cuda_emulator::NumLeftOut(), 0) << of.name;
      }
      cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    }
  }
}

// A task of the host reads what a lane brings when it is there, though the device's streams wait for each other alone.
TEST(CudaSchedulerTest, HostTasksComeAfterWhatTheyWaitFor) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  RunNcclRanks(2, [&](World& world) {
    const auto context = Bind(world, mesh);
    const Tensor elements = CloneTensor(RandomF64({4, kDim}, 1), context->allocator());
    const DTensor terms =
        DTensor::FromLocal(context, elements, Layout::Parse("[-, -] P{dp}", mesh), {4, kDim});
    const Tensor into = Tensor::Empty(context->allocator(), DType::kF64, {4, kDim});
    std::vector<double> seen, seen_again;
    const auto read = [&](std::vector<double>* to) {  // the emulated device's memory is the host's
      const auto* const first = static_cast<const double*>(into.data());
      return [=] { to->assign(first, first + 4 * kDim); };
    };
    TaskGraph graph(context);
    const TaskGraph::Task sum = graph.Communicate("sum", Lane::kGrad, [&] {
      return std::vector<EachMove>{{.source = terms, .to = Layout(2, 1), .into = into}};
    });
    const TaskGraph::Task first = graph.Host("read", read(&seen), {sum});
    graph.Host("read again", read(&seen_again), {first});
    graph.Run();
    const std::vector<double> values = RandomF64({4, kDim}, 1).ToVector<double>();
    ASSERT_EQ(seen.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(seen[i], 2 * values[i]);
    EXPECT_EQ(seen_again, seen);
  });
}

TEST(CudaSchedulerTest, CompressionIsRefused) {
  const Case of = {"compressed", "dp=2", {{"", DataParallel("dp")}, {"", Communication("int8")}}};
  EXPECT_THAT(
      MessageOf([&] { Train(of, /*overlap=*/true); }),
      testing::HasSubstr("Communication(int8) on 'own': gradients are compressed on CPUs; this rank's lie on "
                         "cuda"));
}

}  // namespace
}  // namespace weft
