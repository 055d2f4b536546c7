// An update goes by parts where what it changes is gathered: the first of them move while it changes others.

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/lamb.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/scheduler/num_calls.h"

namespace weft {
namespace {

using testing::Each;
using testing::ElementsAre;

// How many gathers of parameters had been issued at each call of an update.
class GathersBefore final : public CallObserver {
 public:
  explicit GathersBefore(World& world) : world_(world) {}
  void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override {
    if (std::string(call.op.name()) != "sgd_update") return;
    counts_.push_back(NumCalls(world_, Purpose::kParam));
  }
  const std::vector<int64_t>& counts() const { return counts_; }

 private:
  World& world_;
  std::vector<int64_t> counts_;
};

// Four weights, 2 MiB each.
class InARow : public Sequential {
 public:
  InARow() {
    for (int i = 0; i < 4; ++i) Add<Linear>(512, 512, LinearOptions{.bias = false});
  }
};

// Of a model of such weights; of the second step, when the order of forward is known. The same on both ranks.
template <class Model = InARow, class MakeOptimizer>
std::vector<int64_t> CountsUnder(Plan plan, int prefetch, const MakeOptimizer& make) {
  std::vector<std::vector<int64_t>> counts(2);
  plan.set_scheduler({.prefetch = prefetch});
  RunRanks(2, [&](World& world) {
    Model model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    auto optimizer = make(model.AllParameters());
    GathersBefore gathers(world);
    for (int step = 0; step < 2; ++step) {
      Backward(Sum(Square(model(RandomNormal(context, DType::kF64, {2, 512}, {}, "x")))));
      world.ledger().Clear();
      const CallObserverGuard guard(context->state(), step == 1 ? &gathers : nullptr);
      optimizer.Step(1e-6);
      optimizer.ZeroGrad();
    }
    counts[world.rank()] = gathers.counts();
  });
  EXPECT_EQ(counts[0], counts[1]);
  return counts[0];
}

Sgd MakeSgd(const std::vector<Parameter*>& parameters) { return Sgd(parameters, {}); }

TEST(UpdatePartsTest, ValuesAtRestAreGatheredWhileOthersAreUpdated) {
  EXPECT_THAT(CountsUnder({{"", DataParallel("dp", {.shard_state = true})}}, 1, MakeSgd),
              ElementsAre(0, 1, 2, 3));
}

// Those that forward uses first: the first unit, and as many as are gathered ahead.
TEST(UpdatePartsTest, UnitsAreGatheredAheadOfTheNextStepWhileOthersAreUpdated) {
  const Plan plan = {{"*", FullyShard("dp")}, {"", FullyShard("dp")}};
  EXPECT_THAT(CountsUnder(plan, 0, MakeSgd), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(CountsUnder(plan, 1, MakeSgd), ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(CountsUnder(plan, 2, MakeSgd), ElementsAre(0, 1, 2, 3));
}

// Four weights, of which the first and the last are the root's, which forward uses first.
class Ends : public Module {
 public:
  Linear in{this, "in", 512, 512, {.bias = false}};
  Linear a{this, "a", 512, 512, {.bias = false}};
  Linear b{this, "b", 512, 512, {.bias = false}};
  Linear out{this, "out", 512, 512, {.bias = false}};

 protected:
  DTensor Forward(const DTensor& x) override { return out(b(a(in(x)))); }
};

// Not in the model's order: the root's are updated first. They are on their way when `a` is updated, which is gathered ahead, too.
TEST(UpdatePartsTest, UnitsAreUpdatedInTheOrderInWhichForwardReadsThem) {
  const Plan plan = {{"a", FullyShard("dp")}, {"b", FullyShard("dp")}, {"", FullyShard("dp")}};
  EXPECT_THAT(CountsUnder<Ends>(plan, 1, MakeSgd), ElementsAre(0, 0, 1, 2));
}

// Its update holds an all-reduce: one for all parameters.
TEST(UpdatePartsTest, LambUpdatesAllAtOnce) {
  RunRanks(2, [](World& world) {
    InARow model;
    const Plan plan = {{"*", FullyShard("dp")}, {"", FullyShard("dp")}};
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    Lamb optimizer(model.AllParameters(), {});
    Backward(Sum(Square(model(RandomNormal(context, DType::kF64, {2, 512}, {}, "x")))));
    world.ledger().Clear();
    optimizer.Step(1e-6);
    EXPECT_EQ(NumCalls(world, Purpose::kNorm), 1);
  });
}

TEST(UpdatePartsTest, NothingIsGatheredUnderDdp) {
  EXPECT_THAT(CountsUnder({{"", DataParallel("dp")}}, 1, MakeSgd), Each(0));
}

}  // namespace
}  // namespace weft
