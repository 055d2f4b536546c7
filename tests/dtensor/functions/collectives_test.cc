// Moves along one axis by its name: placements, values, gradients, what is sent, what errors say.

#include "dtensor/functions/collectives.h"

#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

// Of a mesh (a=2, b=3): how x lies along b, beside a split of dim 0 along a.
Layout Along(const Context& context, const char* text) { return Layout::Parse(text, context->mesh()); }

struct Case {
  const char* name;
  const char* from;
  const char* to;
  DTensor (*move)(const DTensor& x);
  const char* sends;  // in forward, and in backward of a gradient that lies as the result
  const char* sends_back;
};

const Case kCases[] = {
    {"AllReduce", "[a, -] P{b}", "[a, -]", [](const DTensor& x) { return AllReduce(x, "b"); },
     "all_reduce b activation", ""},
    {"ReduceScatter", "[a, -] P{b}", "[a, b]", [](const DTensor& x) { return ReduceScatter(x, "b", 1); },
     "reduce_scatter b activation", "all_gather b grad"},
    {"AllGather", "[a, b]", "[a, -]", [](const DTensor& x) { return AllGather(x, "b"); },
     "all_gather b activation", ""},
    {"AllToAll", "[-, b]", "[b, -]", [](const DTensor& x) { return AllToAll(x, "b", -2); },
     "all_to_all b activation", "all_to_all b activation"},
    {"CopyToRegion", "[a, -]", "[a, -]", [](const DTensor& x) { return CopyToRegion(x, "b"); }, "", ""},
    {"ScatterToRegion", "[a, -]", "[a, b]", [](const DTensor& x) { return ScatterToRegion(x, "b", -1); }, "",
     "all_gather b activation"},
    {"ReduceFromRegion", "[a, -] P{b}", "[a, -]", [](const DTensor& x) { return ReduceFromRegion(x, "b"); },
     "all_reduce b activation", ""},
    {"GatherFromRegion", "[a, b]", "[a, -]", [](const DTensor& x) { return GatherFromRegion(x, "b"); },
     "all_gather b activation", ""},
};

TEST(CollectivesTest, ValuesStayAndPlacementsChange) {
  const Tensor full = RandomF64({5, 7}, 1);
  const Tensor seed = RandomF64({5, 7}, 2);
  OnMesh("a=2,b=3", [&](const Context& context) {
    for (const Case& of : kCases) {
      const Layout from = Along(context, of.from), to = Along(context, of.to);
      const Tensor piece = PieceOf(full, from, context->mesh(), context->world().rank());
      const Layout gradient = from.HasPartial() ? Along(context, "[a, -]") : from;
      const DTensor x = DTensor::FromLocal(context, piece, from, full.shape()).RequiresGrad(gradient);
      context->world().ledger().Clear();
      const DTensor y = of.move(x);
      EXPECT_EQ(LedgerText(*context), of.sends) << of.name;
      EXPECT_EQ(y.layout(), to) << of.name;
      EXPECT_TRUE(AllClose(y.FullTensor(), full, 1e-14)) << of.name;
      const DTensor dy = DTensor::Distribute(context, seed, to);
      context->world().ledger().Clear();
      Backward(y, dy);
      EXPECT_EQ(LedgerText(*context), of.sends_back) << of.name;
      // The value is the same, so is its gradient.
      EXPECT_TRUE(AllClose(x.grad().FullTensor(), seed, 1e-14)) << of.name;
    }
  });
}

// A gradient that comes as the ranks' terms is summed at the border of the region.
TEST(CollectivesTest, TermsOfGradientsAreSummedAtTheBorder) {
  const Tensor full = RandomF64({4, 6}, 1);
  OnMesh("b=3", [&](const Context& context) {
    const auto sends = [&](const char* from, DTensor (*move)(const DTensor&)) {
      const DTensor x = DTensor::Distribute(context, full, Along(context, from)).RequiresGrad();
      const DTensor y = move(x);
      const DTensor terms = DTensor::FromLocal(context, full, Along(context, "[-, -] P{b}"), full.shape());
      context->world().ledger().Clear();
      Backward(y, terms);
      EXPECT_TRUE(AllClose(x.grad().FullTensor(),
                           Scale(DTensor::Distribute(context, full, Layout(2, 1)), 3).FullTensor(), 1e-14));
      return LedgerText(*context).substr(0, LedgerText(*context).find(','));
    };
    EXPECT_EQ(sends("[-, -]", [](const DTensor& x) { return CopyToRegion(x, "b"); }),
              "all_reduce b activation");
    EXPECT_EQ(sends("[-, b]", [](const DTensor& x) { return GatherFromRegion(x, "b"); }),
              "reduce_scatter b activation");
  });
}

struct Outcome {
  std::vector<double> value, gradient;
};

// Megatron's pair of products, written by hand: f, two products of pieces, g.
Outcome TwoProducts(const Context& context, bool parallel) {
  const Layout whole(2, context->mesh().num_axes());
  const auto of = [&](uint64_t seed, const Shape& shape, const Layout& layout) {
    return DTensor::Distribute(context, RandomF64(shape, seed), layout).RequiresGrad();
  };
  const DTensor x = of(1, {3, 5}, whole);
  const DTensor up = of(2, {5, 7}, parallel ? whole.WithShard(0, 1) : whole);
  const DTensor down = of(3, {7, 5}, parallel ? whole.WithShard(0, 0) : whole);
  const DTensor y = parallel ? ReduceFromRegion(MatMul(Tanh(MatMul(CopyToRegion(x, "tp"), up)), down), "tp")
                             : MatMul(Tanh(MatMul(x, up)), down);
  Backward(Sum(Square(y)));
  return {y.FullTensor().ToVector<double>(), x.grad().FullTensor().ToVector<double>()};
}

TEST(CollectivesTest, AHandWrittenLayerIsOneDevice) {
  Outcome expected;
  OnMesh("", [&](const Context& context) { expected = TwoProducts(context, /*parallel=*/false); });
  for (const char* mesh : {"tp=1", "tp=2", "tp=3"}) {
    OnMesh(mesh, [&](const Context& context) {
      const Outcome outcome = TwoProducts(context, /*parallel=*/true);
      for (size_t i = 0; i < outcome.value.size(); ++i) {
        EXPECT_NEAR(outcome.value[i], expected.value[i], 1e-13) << mesh;
        EXPECT_NEAR(outcome.gradient[i], expected.gradient[i], 1e-12) << mesh;
      }
    });
  }
}

TEST(CollectivesTest, AxesByName) {
  OnMesh("a=2,b=3", [](const Context& context) {
    EXPECT_EQ(AxisSize(*context, "a"), 2);
    EXPECT_EQ(AxisSize(*context, "b"), 3);
    EXPECT_EQ(RankAlong(*context, "a") * 3 + RankAlong(*context, "b"), context->world().rank());
    EXPECT_EQ(AxisGroup(*context, "b").size(), 3);
    EXPECT_EQ(AxisGroup(*context, "b").rank(), RankAlong(*context, "b"));
    EXPECT_THAT(ErrorOf([&] { AxisSize(*context, "c"); }), HasSubstr("'c'"));
  });
}

TEST(CollectivesTest, MistakesAreNamed) {
  OnMesh("b=2", [](const Context& context) {
    const DTensor x = DTensor::Distribute(context, RandomF64({4, 4}, 1), Layout(2, 1));
    EXPECT_THAT(
        ErrorOf([&] { AllReduce(x, "b"); }),
        HasSubstr("AllReduce: expected a tensor that is Partial along axis 'b', got f64[4, 4] [-, -]"));
    EXPECT_THAT(ErrorOf([&] { AllGather(x, "b"); }),
                HasSubstr("expected a tensor that is Shard along axis 'b'"));
    EXPECT_THAT(ErrorOf([&] { ScatterToRegion(x, "b", 2); }),
                HasSubstr("ScatterToRegion: f64[4, 4] [-, -] has no dim 2; expected -2 to 1"));
    EXPECT_THAT(ErrorOf([&] { CopyToRegion(x, "tp"); }), HasSubstr("'tp'"));
    EXPECT_THAT(ErrorOf([&] { CopyToRegion(DTensor(), "b"); }),
                HasSubstr("CopyToRegion: the tensor is undefined"));
  });
}

}  // namespace
}  // namespace weft
