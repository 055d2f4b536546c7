// A model whose ranks have different parts of it, stages or those of On, is spread anew.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/counter.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using testing::HasSubstr;

// A tied head is at the first stage and at the last: one value before, in between and afterwards.
TEST(ParallelizePartsAgainTest, TiedParametersInStages) {
  RunRanks(2, [](World& world) {
    Gpt model({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12, .tied_head = true});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), {{"", FullyShard("dp")}});
    const auto table = [&] { return model.wte.weight.at_rest().FullTensor().ToVector<float>(); };
    const std::vector<float> values = table();
    Parallelize(model, Bind(context, DeviceMesh::Parse("pp=2")), {{"blocks.*", Pipeline("pp")}});
    EXPECT_TRUE(model.wte.weight.is_here());
    EXPECT_EQ(table(), values);
    EXPECT_NE(model.wpe.is_here(), model.ln_f.weight.is_here());
    Parallelize(model, Bind(context, DeviceMesh::Parse("dp=2")), {{"", DataParallel("dp")}});
    EXPECT_EQ(table(), values);
    EXPECT_TRUE(model.wpe.is_here() && model.ln_f.weight.is_here());
    EXPECT_FALSE(model.stages());
  });
}

// A stage without parameters has none to give or to get.
TEST(ParallelizePartsAgainTest, AStageWithoutParameters) {
  RunRanks(2, [](World& world) {
    Products model(2, /*halves=*/{1});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), {{"", FullyShard("dp")}});
    const std::vector<float> weight = model.layers[0]->weight.at_rest().FullTensor().ToVector<float>();
    const auto staged = Bind(context, DeviceMesh::Parse("pp=2"));
    Parallelize(model, staged, {{"layers.*", Pipeline("pp")}});
    EXPECT_EQ(model.layers[0]->weight.is_here(), world.rank() == 0);
    Parallelize(model, staged, {{"layers.*", Pipeline("pp")}}, {.dtype = DType::kF64});
    Parallelize(model, context, {{"", DataParallel("dp")}});
    EXPECT_EQ(model.layers[0]->weight.at_rest().FullTensor().ToVector<float>(), weight);
  });
}

class Pair : public Module {
 public:
  Counter first, second;
  Pair() : first(this, "first"), second(this, "second") {}

 protected:
  DTensor Forward(const DTensor& x) override { return second(first(x)); }
};

// Modules on ranks of their own, and back.
TEST(ParallelizePartsAgainTest, PartsOfTheMesh) {
  RunRanks(3, [](World& world) {
    Pair model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("gpus=3"), {{"", FullyShard("gpus")}});
    const std::vector<Parameter*> weights = {&model.first.weight, &model.second.weight};
    std::vector<std::vector<float>> values;
    for (const Parameter* weight : weights) {
      values.push_back(weight->at_rest().FullTensor().ToVector<float>());
    }
    model.second.seen.Set(
        DTensor::Distribute(context, Tensor::FromValues<float>({4}, {1, 2, 3, 4}), Layout(1, 1)));
    const auto expect_values = [&](bool has_first, bool has_second) {
      const std::vector<bool> has = {has_first, has_second};
      for (size_t i = 0; i < 2; ++i) {
        ASSERT_EQ(weights[i]->is_here(), has[i]) << i << " on rank " << world.rank();
        if (!has[i]) continue;
        EXPECT_EQ(weights[i]->at_rest().FullTensor().ToVector<float>(), values[i]);
      }
      ASSERT_EQ(model.second.seen.is_here(), has_second);
      if (!has_second) return;
      EXPECT_EQ(model.second.seen.Value().FullTensor().ToVector<float>(), (std::vector<float>{1, 2, 3, 4}));
    };
    const auto one = DTensor::Distribute(context, Tensor::FromValues<float>({4}, {1, 1, 1, 1}), Layout(1, 1));
    const std::vector<float> expected = model(one).FullTensor().ToVector<float>();
    const int rank = world.rank();
    Parallelize(model, context, {{"first", On("gpus", 0, 1)}, {"second", On("gpus", 1, 2)}});
    expect_values(rank == 0, rank != 0);
    Parallelize(model, context, {{"first", On("gpus", 0, 2)}, {"second", On("gpus", 2, 1)}});
    expect_values(rank != 2, rank == 2);
    Parallelize(model, context, {{"", DataParallel("gpus")}});
    expect_values(true, true);
    EXPECT_EQ(model(one).FullTensor().ToVector<float>(), expected);
  });
}

// What some rank wants and none has, or has otherwise: every rank says so, and nothing has moved.
TEST(ParallelizePartsAgainTest, MoveStateAmongPartsNamesWhatIsMissing) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("pp=2"));
    const auto own = Bind(context, context->mesh().Slice({{"pp", world.rank()}}));
    const auto full = [&](DType dtype, double value) { return Full(own, dtype, {4}, value); };
    using Named = std::vector<std::pair<std::string, DTensor>>;
    const Named from = {{world.rank() == 0 ? "a" : "b", full(DType::kF32, 1 + world.rank())}};
    const Named swapped = {{world.rank() == 0 ? "b" : "a", full(DType::kF32, 0)}};
    MoveState(from, swapped, *context);
    EXPECT_EQ(swapped[0].second.ToLocal().ToVector<float>(), std::vector<float>(4, 2.0f - world.rank()));
    Named missing = swapped, other = swapped;
    if (world.rank() == 1) missing[0].first = "c";
    EXPECT_EQ(MessageOf([&] { MoveState(from, missing, *context); }),
              "MoveState: there is no 'c' among the 2 tensors to take it from");
    EXPECT_THAT(MessageOf([&] { MoveState(from, swapped); }), HasSubstr("MoveState: there is no '"));
    const Named whole = {{from[0].first, Full(context, DType::kF32, {4}, 0)}};
    EXPECT_EQ(
        MessageOf([&] { MoveState(from, whole); }),
        absl::StrCat("MoveState: '", from[0].first, "' lies on mesh (at pp=", world.rank(),
                     ") and goes to mesh (pp=2), which has other ranks: give the context of all ranks of the "
                     "model, too"));
    EXPECT_EQ(MessageOf([&] { MoveState(from, whole, *context); }),
              "MoveState: expected the same tensors on all ranks of mesh (pp=2)");
    if (world.rank() == 0) other[0].second = full(DType::kF64, 0);
    EXPECT_EQ(MessageOf([&] { MoveState(from, other, *context); }),
              "MoveState: 'b' is f32[4], expected f64[4]");
  });
}

}  // namespace
}  // namespace weft
