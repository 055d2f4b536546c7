// Gradients across meshes: to any ranks, of any layouts, told to ranks that know nothing of the tensor.

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/nn/part_call.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

DeviceMesh MeshOver(std::vector<MeshAxis> axes, std::vector<int> ranks) {
  return DeviceMesh(std::move(axes), std::move(ranks));
}

Layout WholeOn(const MeshContext& context, int ndim) { return Layout(ndim, context.mesh().num_axes()); }

DTensor BringWhole(const DTensor& x, const IntrusivePtr<MeshContext>& target) {
  return BringTo(x, target, [&](int ndim) { return WholeOn(*target, ndim); });
}

// x on one mesh, the sum of its cubes on another, which all ranks get: 3 x^2 comes back, whatever the layouts.
void CheckCubes(int world_size, const DeviceMesh& from_mesh, const DeviceMesh& to_mesh, const Shape& shape) {
  const Tensor full = RandomF64(shape, 7);
  const std::vector<double> values = full.ToVector<double>();
  double cubes = 0;
  for (const double value : values) cubes += value * value * value;
  RunRanks(world_size, [&](World& world) {
    const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh({{"all", world_size}}));
    const IntrusivePtr<MeshContext> from = BindPart(whole, from_mesh), to = BindPart(whole, to_mesh);
    for (const Layout& source : AllLayouts(from_mesh, shape.ndim(), {ReduceOp::kSum})) {
      for (const Layout& target : AllLayouts(to_mesh, shape.ndim(), {})) {
        const std::string what = absl::StrCat(source.ToString(from_mesh), " to ", target.ToString(to_mesh),
                                              ", rank ", world.rank());
        const Layout rest = WithoutPartial(source);
        const DTensor leaf =
            from->is_member() ? Lay(from, full, source).RequiresGrad(rest) : DTensor::Absent(from);
        const DTensor brought = BringTo(leaf, to, [&](int) { return target; });
        EXPECT_EQ(brought.is_absent(), !to->is_member());
        const DTensors sums = CallOnPart("cubes", to, {brought}, /*num_outputs=*/1,
                                         [](const DTensors& x) { return DTensors{Sum(x[0] * x[0] * x[0])}; });
        const DTensor sum = BringWhole(sums[0], whole);
        ASSERT_NEAR(sum.Item(), cubes, 1e-12) << what;
        Backward(sum);
        if (!from->is_member()) continue;
        const std::vector<double> gradient = leaf.grad().FullTensor().ToVector<double>();
        ASSERT_EQ(gradient.size(), values.size());
        for (size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(gradient[i], 3 * values[i] * values[i], 1e-12) << what;
      }
    }
  });
}

TEST(MeshTransferGradientTest, OtherRanks) {
  CheckCubes(5, MeshOver({{"a", 2}}, {0, 3}), MeshOver({{"x", 3}}, {1, 2, 4}), {7, 4});
  CheckCubes(5, MeshOver({{"x", 3}}, {1, 2, 4}), MeshOver({{"a", 2}}, {0, 3}), {7, 4});
}

TEST(MeshTransferGradientTest, OneToManyAndBack) {
  const DeviceMesh one = MeshOver({}, {2}), many = MeshOver({{"a", 2}, {"b", 2}}, {0, 1, 3, 4});
  CheckCubes(5, one, many, {3, 5});
  CheckCubes(5, many, one, {3, 5});
}

TEST(MeshTransferGradientTest, SomeOfTheRanks) {
  const DeviceMesh all = DeviceMesh::Parse("all=3"), some = MeshOver({{"x", 2}}, {0, 2});
  CheckCubes(3, all, some, {4, 3});
  CheckCubes(3, some, all, {4, 3});
  CheckCubes(3, all, DeviceMesh({{"y", 3}}), {4, 3});
}

TEST(MeshTransferGradientTest, OverlappingRanksAndEdgeShapes) {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1, 2}}) {
    CheckCubes(5, MeshOver({{"a", 3}}, {0, 1, 2}), MeshOver({{"x", 3}}, {2, 3, 4}), shape);
  }
}

// Where every rank has both meshes, nobody has to be told.
TEST(MeshTransferGradientTest, Redistribute) {
  const Tensor full = RandomF64({5, 3}, 2);
  OnMesh("a=4", [&](const IntrusivePtr<MeshContext>& a) {
    const IntrusivePtr<MeshContext> other = Bind(a, DeviceMesh::Parse("x=2,y=2"));
    const DTensor leaf = Lay(a, full, "[a, -]").RequiresGrad();
    const DTensor moved = Redistribute(leaf, other, Layout::Parse("[x, y]", other->mesh()));
    Backward(Sum(Square(moved)));
    EXPECT_EQ(LayoutText(leaf.grad()), "[a, -]");
    EXPECT_TRUE(SameBits(leaf.grad().FullTensor(), (Lay(a, full, "[-, -]") * 2.0).FullTensor()));
  });
}

// What is told costs so many bytes, on the way there and on the way back; and of ranks that know it, nothing.
TEST(MeshTransferGradientTest, BytesOfWhatIsTold) {
  static_assert(kToldBytes == 112);
  RunRanks(3, [](World& world) {
    const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh::Parse("all=3"));
    const IntrusivePtr<MeshContext> from = BindPart(whole, MeshOver({}, {0}));
    const IntrusivePtr<MeshContext> to = BindPart(whole, MeshOver({{"x", 2}}, {1, 2}));
    const DTensor x =
        from->is_member() ? Lay(from, RandomF64({5}, 1), "[-]").RequiresGrad() : DTensor::Absent(from);
    const auto bytes = [&] {
      const int64_t num_bytes = world.ledger().num_bytes();
      world.ledger().Clear();
      return num_bytes;
    };
    const DTensor y = BringTo(x, to, [](int ndim) { return Layout(ndim, 1).WithShard(0, 0); });
    EXPECT_EQ(bytes(), std::vector<int64_t>({0, 112 + 3 * 8, 112 + 2 * 8})[world.rank()]);
    const DTensors z = CallOnPart("z", to, {y}, 1, [](const DTensors& in) { return DTensors{Sum(in[0])}; });
    const DTensor loss = BringWhole(z[0], whole);
    bytes();
    Backward(loss);  // the loss's gradient is on all ranks
    EXPECT_EQ(bytes(), std::vector<int64_t>({112 + 5 * 8, 0, 0})[world.rank()]);
  });
}

// Two parts between a leaf and the loss, and a rank that has neither: a uses x twice, b does not use a's second output.
TEST(MeshTransferGradientTest, ChainsUsedTwiceAndNever) {
  const Tensor full = RandomF64({3}, 4);
  const std::vector<double> x = full.ToVector<double>();
  RunRanks(5, [&](World& world) {
    const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh::Parse("all=5"));
    const IntrusivePtr<MeshContext> a = BindPart(whole, MeshOver({{"a", 2}}, {0, 1}));
    const IntrusivePtr<MeshContext> b = BindPart(whole, MeshOver({{"b", 2}}, {2, 3}));
    const DTensor leaf = Lay(whole, full, "[all]").RequiresGrad();
    const DTensors made = CallOnPart("a", a, {BringWhole(leaf, a), BringWhole(leaf, a)}, /*num_outputs=*/2,
                                     [](const DTensors& in) {
                                       return DTensors{in[0] * in[1], Sum(in[0])};
                                     });
    const DTensors used =
        CallOnPart("b", b, {BringWhole(made[0], b), BringWhole(made[1], b)}, /*num_outputs=*/1,
                   [](const DTensors& in) { return DTensors{Sum(Square(in[0]))}; });
    // a's first output takes a second way to the loss.
    const DTensor loss = BringWhole(used[0], whole) + Sum(BringWhole(made[0], whole));
    Backward(loss);
    const std::vector<double> gradient = leaf.grad().FullTensor().ToVector<double>();
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(gradient[i], 4 * x[i] * x[i] * x[i] + 2 * x[i], 1e-12);
  });
}

// What a part makes of an input may not lead back to it; the ranks that gave it hear so.
TEST(MeshTransferGradientTest, AnInputThatIsNotDifferentiated) {
  const Tensor full = RandomF64({4}, 4);
  RunRanks(3, [&](World& world) {
    const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh::Parse("all=3"));
    const IntrusivePtr<MeshContext> part = BindPart(whole, MeshOver({{"p", 1}}, {1}));
    const DTensor leaf = Lay(whole, full, "[-]").RequiresGrad(),
                  other = Lay(whole, full, "[all]").RequiresGrad();
    const DTensors made =
        CallOnPart("part", part, {BringWhole(leaf, part), BringWhole(other, part)}, 1,
                   [](const DTensors& in) { return DTensors{Sum(in[0].Detach() * in[1])}; });
    Backward(BringWhole(made[0], whole));
    EXPECT_FALSE(leaf.grad().defined());
    EXPECT_TRUE(SameBits(other.grad().FullTensor(), full));
  });
}

// Other ranks cannot know that an index has no history, where what it was made of has one.
TEST(MeshTransferGradientTest, PartsGiveFloatingTensors) {
  const auto run = [](bool with_gradients) {
    return ErrorOf([&] {
      RunRanks(2, [&](World& world) {
        const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh::Parse("all=2"));
        const IntrusivePtr<MeshContext> part = BindPart(whole, MeshOver({{"p", 1}}, {0}));
        const DTensor x = Zeros(whole, DType::kF64, {2, 3});
        const DTensors made =
            CallOnPart("part", part, {BringWhole(with_gradients ? x.RequiresGrad() : x, part)}, 1,
                       [](const DTensors& in) { return DTensors{Argmax(in[0], 1)}; });
        EXPECT_EQ(BringWhole(made[0], whole).ToString(), "i64[2] [-]");
      });
    });
  };
  EXPECT_EQ(run(false), "nothing was thrown");
  EXPECT_EQ(run(true),
            "rank 0: part: output 0 is i64[2] [-]; what leaves a part of a model whose inputs have gradients "
            "is floating: "
            "cast it there, or call it under NoGradGuard");
}

// Without gradients there is no history, on any rank; and Grad of chosen inputs.
TEST(MeshTransferGradientTest, WithoutGradientsAndOfChosenInputs) {
  const Tensor full = RandomF64({4}, 4);
  RunRanks(3, [&](World& world) {
    const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh::Parse("all=3"));
    const IntrusivePtr<MeshContext> part = BindPart(whole, MeshOver({{"p", 2}}, {0, 1}));
    const DTensor x = Lay(whole, full, "[-]").RequiresGrad(), w = Lay(whole, full, "[all]").RequiresGrad();
    const auto run = [&] {
      const DTensors made = CallOnPart("part", part, {BringWhole(x, part), BringWhole(w, part)}, 1,
                                       [](const DTensors& in) { return DTensors{Sum(in[0] * in[1])}; });
      return BringWhole(made[0], whole);
    };
    {
      const NoGradGuard no_grad(whole->state());
      EXPECT_FALSE(run().requires_grad());
    }
    const std::vector<DTensor> inputs = {x};
    const std::vector<DTensor> gradients = Grad(absl::MakeConstSpan({run()}), inputs);
    EXPECT_TRUE(SameBits(gradients[0].FullTensor(), full));
    EXPECT_FALSE(w.grad().defined());
    const DTensor loss = run();
    EXPECT_EQ(
        ErrorOf([&] { Grad(absl::MakeConstSpan(&loss, 1), inputs, {.create_graph = true}); }).substr(0, 80),
        "transfer (p=2) to (all=3): there is no gradient of its gradient; differentiate o");
  });
}

TEST(MeshTransferGradientTest, AbsentTensorsSayWhatTheyAre) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> whole = Bind(world, DeviceMesh::Parse("all=2"));
    const IntrusivePtr<MeshContext> part = BindPart(whole, MeshOver({{"p", 1}}, {0}));
    const DTensor x = DTensor::Distribute(part, RandomF64({2}, 1), Layout(1, 1));
    const std::string outside =
        " lies on mesh (p=1), which rank 1 is not in; what it is, is known on the ranks of that "
        "mesh, and in modules that take it";
    if (world.rank() == 0) {
      EXPECT_EQ(x.ToString(), "f64[2] [-]");
      EXPECT_EQ(ErrorOf([&] { DTensor::Absent(part); }),
                "Absent: rank 0 is in mesh (p=1): expected a tensor");
      return;
    }
    EXPECT_EQ(x.ToString(), "absent, on mesh (p=1)");
    EXPECT_EQ(ErrorOf([&] { x.shape(); }), "this DTensor is absent: it" + outside);
    EXPECT_EQ(ErrorOf([&] { x.ToLocal(); }), "this DTensor is absent: it" + outside);
    EXPECT_EQ(
        ErrorOf([&] { Relu(x); }),
        "relu(absent, on mesh (p=1)): an operand is absent on rank 1: what a part of a model has made is "
        "computed with in a module of that part, or in one that takes it");
    EXPECT_EQ(
        ErrorOf([&] { Add(Zeros(whole, DType::kF64, {2}), x); }),
        "add(f64[2] [-], absent, on mesh (p=1)): an operand is absent on rank 1: what a part of a model has "
        "made is computed with in a module of that part, or in one that takes it");
    EXPECT_EQ(
        ErrorOf([&] { x.Redistribute(Layout(1, 1)); }),
        "Redistribute: the tensor is absent, on mesh (p=1): expected one that this rank has a piece of");
    EXPECT_EQ(ErrorOf([&] { Bind(whole, part->mesh()); }),
              "rank 1 is not in mesh (p=1) of 1 ranks; the world has 2");
    EXPECT_EQ(ErrorOf([&] { part->Group({0}); }),
              "rank 1 is not in mesh (p=1): it holds nothing there and cannot compute on it");
  });
}

}  // namespace
}  // namespace weft
