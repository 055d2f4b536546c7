// Communication that lanes run lies beside what the rank computes: seen in the trace, with collectives that are held
// back until backward has returned, so that no machine is too slow for it.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/recompute.h"
#include "dtensor/functions.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/sgd.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "parallel/parallelize.h"
#include "runtime/comm/worker.h"
#include "tests/parallel/scheduler/chain.h"
#include "tests/parallel/scheduler/forward_operation.h"
#include "tests/parallel/scheduler/trace_spans.h"

namespace weft {
namespace {

// Closed while backward runs.
class Gate {
 public:
  // `limit`: where whoever is to open it may wait for what stands before it, it opens by itself behind that, for a test to fail and
  // not to hang; 0: never.
  void Close(std::chrono::seconds limit = {}) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    num_waiting_ = 0;
    limit_ = limit;
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Returns when it is open.
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    const auto is_open = [this] { return open_; };
    if (limit_ == std::chrono::seconds(0)) {
      changed_.wait(lock, is_open);
    } else if (!changed_.wait_for(lock, limit_, is_open)) {
      open_ = true;
    }
  }
  // Returns when somebody stands before it.
  void AwaitSomebody() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int num_waiting_ = 0;
  std::chrono::seconds limit_{0};
};

// Another communicator, whose operations on a lane wait at the gate.
class GatedCommunicator final : public Communicator {
 public:
  GatedCommunicator(std::shared_ptr<Communicator> inner, Gate* gate)
      : Communicator(inner->name(), inner->rank(), inner->ranks(), /*ledger=*/nullptr),
        inner_(std::move(inner)),
        gate_(gate) {}

  void Fail(absl::StatusCode code, const std::string& message) override { inner_->Fail(code, message); }
  void SetInBackground() override { inner_->SetInBackground(); }

 protected:
  Work Submit(Operation&& operation) override {
    if (operation.options.worker != nullptr) {
      operation.options.worker->Submit([gate = gate_] { gate->Pass(); });
      gate_->AwaitSomebody();
    }
    return ForwardOperation(*inner_, operation);
  }

 private:
  const std::shared_ptr<Communicator> inner_;
  Gate* const gate_;
};

// Operations over `axes` wait at the gate.
class GatedWorld final : public World {
 public:
  GatedWorld(World& inner, Gate* gate, std::string axes)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        gate_(gate),
        axes_(std::move(axes)) {}
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    std::shared_ptr<Communicator> group = inner_.NewGroup(name, ranks);
    if (name != axes_) return group;
    return std::make_shared<GatedCommunicator>(std::move(group), gate_);
  }

 private:
  World& inner_;
  Gate* const gate_;
  const std::string axes_;
};

int CountInside(const std::vector<Interval>& inner, const std::vector<Interval>& outer) {
  int count = 0;
  for (const Interval& span : inner) {
    for (const Interval& around : outer) {
      if (around.begin <= span.begin && span.end <= around.end) {
        ++count;
        break;
      }
    }
  }
  return count;
}

std::vector<std::vector<float>> GradientsOf(Module& model) {
  std::vector<std::vector<float>> gradients;
  for (const Parameter* parameter : model.AllParameters()) {
    gradients.push_back(parameter->grad().ToLocal().ToVector<float>());
  }
  return gradients;
}

// No gradient moves while backward runs, and no bucket waits for another: one that did would wait at the gate, a minute.
void ExpectBackwardComputesWhileGradientsMove(DataPlan data_plan) {
  const nlohmann::json trace = TraceOf(2, [data_plan](World& plain) {
    Gate gate;
    GatedWorld world(plain, &gate, "dp");
    Gpt model({.vocabulary = 31, .context = 8, .layers = 3, .heads = 2, .dim = 16});
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Plan plan = GptPlan(mesh, data_plan, /*sequence_parallel=*/false);
    plan.set_scheduler({.bucket_mb = 0.01});
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF32});
    const Tensor ones = Tensor::FromValues<int32_t>({2, 8}, std::vector<int32_t>(16, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    Backward(model.Loss(tokens, tokens).Mean());  // learns the order
    const std::vector<std::vector<float>> expected = GradientsOf(model);
    for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
    const DTensor loss = model.Loss(tokens, tokens).Mean();
    gate.Close(/*limit=*/std::chrono::minutes(1));
    Backward(loss);  // returns, though no gradient has moved
    int num_pending = 0;
    for (const Parameter* parameter : model.AllParameters()) {
      num_pending += parameter->grad().impl()->pending() && !parameter->grad().impl()->pending()->Test();
    }
    EXPECT_EQ(num_pending, std::ssize(model.AllParameters()));
    gate.Open();
    EXPECT_EQ(GradientsOf(model), expected);
    world.FinishWork();
  });
  for (const int rank : {0, 1}) {
    const std::vector<Interval> ops = SpansOf(trace, "op", rank, static_cast<int>(Lane::kInline));
    const std::vector<Interval> moves = SpansOf(trace, "comm", rank, static_cast<int>(Lane::kGrad));
    EXPECT_GT(moves.size(), 5u);
    // All of backward but what came before its first bucket: most of three blocks.
    EXPECT_GT(CountInside(ops, moves), 30) << "of " << ops.size() << " ops on rank " << rank;
  }
}

TEST(OverlapTest, BackwardComputesWhileGradientsMove) {
  ExpectBackwardComputesWhileGradientsMove(DataPlan::kDdp);
}
TEST(OverlapTest, Zero1ComputesWhileGradientsMove) {
  ExpectBackwardComputesWhileGradientsMove(DataPlan::kZero1);
}
TEST(OverlapTest, Zero2ComputesWhileGradientsMove) {
  ExpectBackwardComputesWhileGradientsMove(DataPlan::kZero2);
}

// A GPT of three blocks that trains on a world whose operations over some axes wait at a gate.
struct GatedTraining {
  GatedTraining(World& plain, const char* mesh_text, DataPlan data_plan, std::string axes)
      : world(plain, &gate, std::move(axes)), mesh(DeviceMesh::Parse(mesh_text)) {
    const Plan plan = GptPlan(mesh, data_plan, /*sequence_parallel=*/false);
    context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF32});
    const Tensor ones = Tensor::FromValues<int32_t>({4, 8}, std::vector<int32_t>(32, 1));
    tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    optimizer.emplace(model.AllParameters(), AdamWOptions{});
  }

  void ForwardAndBackward() { Backward(model.Loss(tokens, tokens).Mean()); }
  void SettleGradients() {
    for (const Parameter* parameter : model.AllParameters()) parameter->grad().ToLocal();
  }
  void Update() {
    optimizer->Step(1e-3);
    optimizer->ZeroGrad();
  }

  Gate gate;
  GatedWorld world;
  DeviceMesh mesh;
  Gpt model{GptConfig{.vocabulary = 31, .context = 8, .layers = 3, .heads = 2, .dim = 16}};
  IntrusivePtr<MeshContext> context;
  DTensor tokens;
  std::optional<AdamW> optimizer;
};

// HSDP: while replicas sum one unit's pieces, held back until backward has returned, later units are scattered.
TEST(OverlapTest, UnitsAreScatteredWhileReplicasSum) {
  const nlohmann::json trace = TraceOf(4, [](World& plain) {
    GatedTraining training(plain, "replica=2,shard=2", DataPlan::kHsdp, "replica");
    training.ForwardAndBackward();  // learns the order
    training.SettleGradients();
    training.Update();
    training.gate.Close();
    training.ForwardAndBackward();
    for (const Parameter* parameter : training.model.AllParameters()) {
      EXPECT_FALSE(parameter->grad().impl()->pending()->Test()) << parameter->path();
    }
    training.gate.Open();
    training.SettleGradients();
    training.world.FinishWork();
  });
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<Interval> scatters = SpansOf(trace, "comm", rank, static_cast<int>(Lane::kGrad));
    const std::vector<Interval> sums = SpansOf(trace, "comm", rank, static_cast<int>(Lane::kReplica));
    EXPECT_EQ(scatters.size(), 8u);  // two steps of three blocks and the root
    EXPECT_EQ(sums.size(), 8u);
    // Of the second step all but the first block, whose sum waits for it, and perhaps the last.
    EXPECT_GE(CountInside(scatters, sums), 2) << "rank " << rank;
  }
}

// With copies that stay, the passes of a step but the first gather nothing; the next step knows the order all the same.
TEST(OverlapTest, UnitsThatStayAreGatheredAheadOfTheNextStep) {
  const nlohmann::json trace = TraceOf(2, [](World& world) {
    Chain model;
    const Plan plan = {{"blocks.*", FullyShard("dp", {.reshard = Reshard::kNever})},
                       {"", FullyShard("dp", {.reshard = Reshard::kNever})}};
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF32});
    Sgd optimizer(model.AllParameters(), {});
    for (int step = 0; step < 2; ++step) {
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        Backward(Mean(Square(model(RandomNormal(context, DType::kF32, {4, kDim}, {}, "x")))));
      }
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
    }
    world.FinishWork();
  });
  for (const int rank : {0, 1}) {
    // The second step's root and four blocks, and the root and the first block ahead of the third.
    EXPECT_EQ(SpansOf(trace, "comm", rank, static_cast<int>(Lane::kParam)).size(), 7u) << "rank " << rank;
  }
}

// No backward tells the order of a model that is only run forward, such as a teacher: its last forward does.
TEST(OverlapTest, AModelThatIsOnlyRunForwardGathersAhead) {
  for (const bool freezes : {false, true}) {
    const nlohmann::json trace = TraceOf(2, [freezes](World& world) {
      Chain model;
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF32});
      std::optional<NoGradGuard> no_grad;
      if (freezes) {
        model.set_trainable(false);
      } else {
        no_grad.emplace(context->state());
      }
      for (int forward = 0; forward < 2; ++forward) {
        model(RandomNormal(context, DType::kF32, {4, kDim}, {}, "x"));
      }
      world.FinishWork();
    });
    for (const int rank : {0, 1}) {
      // The second forward's blocks.
      EXPECT_EQ(SpansOf(trace, "comm", rank, static_cast<int>(Lane::kParam)).size(), 4u)
          << "rank " << rank << ", freezes " << freezes;
    }
  }
}

// A teacher that is asked within a function which is recomputed keeps the order of its forward when backward asks it again.
TEST(OverlapTest, ATeacherThatIsRecomputedGathersAhead) {
  const nlohmann::json trace = TraceOf(2, [](World& world) {
    Chain teacher;
    const auto context =
        Parallelize(teacher, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF32});
    const DTensor x = RandomNormal(context, DType::kF32, {4, kDim}, {}, "x").RequiresGrad();
    const auto loss = [&](const DTensors& in) -> DTensors {
      std::optional<NoGradGuard> no_grad(context->state());
      const DTensor wanted = teacher(in[0].Detach());
      no_grad.reset();
      return {Mean(Square(in[0] - wanted))};
    };
    for (int step = 0; step < 2; ++step) Backward(Recompute(loss, {x})[0]);
    world.FinishWork();
  });
  for (const int rank : {0, 1}) {
    // The blocks of the second step's forward.
    EXPECT_EQ(SpansOf(trace, "comm", rank, static_cast<int>(Lane::kParam)).size(), 4u) << "rank " << rank;
  }
}

// The gathers that an update leaves behind are pending when it returns; what the host does then runs beside them.
void ExpectGathersBehindUpdate(DataPlan plan) {
  const nlohmann::json trace = TraceOf(2, [plan](World& plain) {
    GatedTraining training(plain, "dp=2", plan, "dp");
    for (int step = 1; step <= 2; ++step) {
      training.ForwardAndBackward();
      training.SettleGradients();
      training.gate.Close();
      training.Update();
      const DTensor wte = training.model.wte.weight.at_rest();
      EXPECT_TRUE(wte.impl()->is_pending() && !wte.impl()->pending()->Test()) << "step " << step;
      {
        const NoGradGuard no_grad(training.context->state());
        for (int i = 0; i < 5; ++i) Full(training.context, DType::kF32, {16, 16}, i);
      }
      training.gate.Open();
    }
    training.ForwardAndBackward();
    training.world.FinishWork();
  });
  for (const int rank : {0, 1}) {
    const std::vector<Interval> ops = SpansOf(trace, "op", rank, static_cast<int>(Lane::kInline));
    const std::vector<Interval> moves = SpansOf(trace, "comm", rank, static_cast<int>(Lane::kParam));
    EXPECT_GE(CountInside(ops, moves), 2 * 5) << "of " << ops.size() << " ops on rank " << rank;
  }
}

TEST(OverlapTest, TheFirstUnitIsGatheredBehindTheUpdate) { ExpectGathersBehindUpdate(DataPlan::kFsdp); }
TEST(OverlapTest, Zero1GathersBehindTheUpdate) { ExpectGathersBehindUpdate(DataPlan::kZero1); }
TEST(OverlapTest, Zero2GathersBehindTheUpdate) { ExpectGathersBehindUpdate(DataPlan::kZero2); }

}  // namespace
}  // namespace weft
