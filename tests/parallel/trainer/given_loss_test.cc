// Losses and counts as programs may give them to a trainer: of calls of children alone, and of any dtype.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/context/rank_state.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using Masks = std::map<uint64_t, std::vector<double>>;  // by step

// What a loss draws that calls a child alone, of eight rows in so many parts, in the steps `first` to `last`; of the last
// step twice, as FindNonFinite runs it again.
Masks DrawnBesideARoot(int first, int last, int parts) {
  Masks masks;
  RunRanks(1, [&](World& world) {
    class Model : public Module {
     public:
      Linear layer{this, "layer", 3, 3};
    } model;
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
    RankState& state = context->state();
    state.set_warning_sink([](const std::string&) {});
    Sgd sgd(model.AllParameters(), {});
    Trainer trainer(model, sgd);
    trainer.set_step(first - 1);
    const int64_t rows = 8 / parts;
    const auto count = [&](int) { return Full(context, DType::kF64, {}, static_cast<double>(rows)); };
    const auto loss = [&](int i) {
      const BatchOffsetGuard offset(state, i * rows);
      const DTensor mask = Dropout(Full(context, DType::kF64, {rows, 3}, 1), 0.5);
      for (const double each : mask.ToLocal().ToVector<double>()) masks[state.step()].push_back(each);
      return LossSum{.sum = Sum(model.layer(mask)), .count = count(i)};
    };
    for (int step = first; step <= last; ++step) {
      if (parts == 1) {
        trainer.Step(8, [&] { return loss(0).Mean(); });
      } else if (parts == 2) {
        trainer.Step(parts, count, loss);
      } else {
        trainer.Step(
            parts, [&](int) { return rows; }, [&](int i) { return loss(i).Mean(); });
      }
    }
    trainer.Flush();
    const uint64_t number = state.call_number();
    trainer.FindNonFinite();
    EXPECT_EQ(state.call_number(), number);
    EXPECT_EQ(state.step(), static_cast<uint64_t>(last));
  });
  return masks;
}

// The step, and not how often the process has drawn: in parts as in one, and after a start at a later step.
TEST(GivenLossTest, ALossThatCallsChildrenAloneDrawsByTheStep) {
  const Masks whole = DrawnBesideARoot(1, 3, /*parts=*/1);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_NE(whole.at(1), whole.at(2));
  const std::vector<double> once(whole.at(3).begin(), whole.at(3).begin() + 24);
  std::vector<double> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(whole.at(3), twice);
  for (const int parts : {2, 4}) EXPECT_EQ(DrawnBesideARoot(1, 3, parts), whole) << parts;
  EXPECT_EQ(DrawnBesideARoot(3, 3, /*parts=*/1), (Masks{{3, twice}}));
}

}  // namespace
}  // namespace weft
