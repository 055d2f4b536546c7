// Tensors on slices of a mesh: a slice computes what a mesh of its remaining axes does, beside the others.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/mesh_transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// What one rank has of everything that Compute makes: layouts by name, and pieces.
struct Results {
  std::vector<std::string> layouts;
  std::vector<Tensor> pieces;

  void Add(const DTensor& tensor) {
    layouts.push_back(LayoutText(tensor));
    pieces.push_back(CloneTensor(tensor.ToLocal(), MakeCpuAllocator()));
  }
};

// Products of all layouts, their gradients, and redistributions between all, of layouts of `small`'s axes.
Results Compute(const IntrusivePtr<MeshContext>& context, const DeviceMesh& small) {
  const Tensor a = RandomF64({5, 4}, 1), b = RandomF64({4, 6}, 2);
  std::vector<Layout> layouts;
  for (const Layout& layout : AllLayouts(small, 2, {ReduceOp::kSum})) {
    layouts.push_back(Layout::Parse(layout.ToString(small), context->mesh()));
  }
  Results results;
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t j = i % 3; j < layouts.size(); j += 3) {
      const DTensor x = Lay(context, a, layouts[i]).RequiresGrad(Layout(2, context->mesh().num_axes()));
      const DTensor y = MatMul(x, Lay(context, b, layouts[j]));
      results.Add(y.Detach());
      Backward(Sum(Square(y)));
      results.Add(x.grad());
      results.Add(Lay(context, a, layouts[i]).Redistribute(layouts[j]));
    }
  }
  results.Add(Softmax(Lay(context, a, layouts.back()), 1));
  return results;
}

// On every slice of `mesh` at its first axis at once, against the mesh of the others.
void ExpectSlicesLike(const std::string& first, const std::string& rest) {
  const DeviceMesh small = DeviceMesh::Parse(rest);
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat(first, ", ", rest));
  std::vector<Results> expected(small.num_ranks());
  OnMesh(rest, [&](const IntrusivePtr<MeshContext>& context) {
    expected[context->world().rank()] = Compute(context, small);
  });
  OnMesh(absl::StrCat(first, ", ", rest), [&](const IntrusivePtr<MeshContext>& root) {
    const int rank = root->world().rank();
    const DeviceMesh slice = mesh.Slice({{mesh.axis_name(0), root->coordinate()[0]}});
    const IntrusivePtr<MeshContext> context = Bind(root, slice);
    const Results got = Compute(context, small);
    const Results& wanted = expected[rank % small.num_ranks()];
    EXPECT_EQ(got.layouts, wanted.layouts);
    ASSERT_EQ(got.pieces.size(), wanted.pieces.size());
    for (size_t i = 0; i < got.pieces.size(); ++i) {
      EXPECT_TRUE(SameBits(got.pieces[i], wanted.pieces[i])) << i << ", rank " << rank;
    }
  });
}

TEST(MeshSliceTest, ComputesWhatASmallMeshDoes) {
  ExpectSlicesLike("pp=2", "dp=2");
  ExpectSlicesLike("pp=2", "dp=3");
  ExpectSlicesLike("pp=3", "dp=2");
  ExpectSlicesLike("pp=2", "dp=2, tp=2");
}

// The axis that is fixed may be any, and what remains need not be neighbours.
TEST(MeshSliceTest, OfTheInnerAxis) {
  const Tensor full = RandomF64({7, 4}, 3);
  OnMesh("a=2, b=2, c=2", [&](const IntrusivePtr<MeshContext>& root) {
    const DeviceMesh slice = root->mesh().Slice({{"b", root->coordinate()[1]}});
    const IntrusivePtr<MeshContext> context = Bind(root, slice);
    EXPECT_TRUE(context->is_member());
    EXPECT_EQ(context->coordinate()[1], 0);
    const DTensor x = Lay(context, full, "[c.a, -]");
    const DTensor y = x.Redistribute(Layout::Parse("[-, a]", slice));
    EXPECT_TRUE(SameBits(y.ToLocal(), PieceOf(full, y.layout(), slice, root->world().rank())));
    EXPECT_TRUE(SameBits(y.FullTensor(), full));
    // What ranks tell each other, they tell within the slice.
    EXPECT_EQ(DTensor::FromLocal(context, y.ToLocal(), y.layout()).shape(), (Shape{7, 4}));
    DTensor::FromLocal(context, y.ToLocal(), y.layout(), {7, 4}, {.check_replicas = true});
    const Tensor own = FromDoubles(DType::kF64, {2}, {1.0 * root->world().rank(), 3});
    EXPECT_THAT(
        ErrorOf([&] { DTensor::FromLocal(context, own, Layout(1, 3), {2}, {.check_replicas = true}); }),
        HasSubstr(root->coordinate()[1] == 0 ? "rank 1 (a=0, b=0, c=1) differs from rank 0 (a=0, b=0, c=0)"
                                             : "rank 3 (a=0, b=1, c=1) differs from rank 2 (a=0, b=1, c=0)"));
  });
}

TEST(MeshSliceTest, SharesTheRanksStateAndItsRootsGroups) {
  OnMesh("pp=2, dp=2", [](const IntrusivePtr<MeshContext>& root) {
    const IntrusivePtr<MeshContext> slice = Bind(root, root->mesh().Slice({{"pp", root->coordinate()[0]}}));
    EXPECT_EQ(&slice->state(), &root->state());
    EXPECT_EQ(&slice->Group({1}), &root->Group({1}));
    EXPECT_EQ(&slice->Group({0, 1}), &root->Group({1}));  // all of the slice
    EXPECT_EQ(&slice->Group({1}, Lane::kGrad), &root->Group({1}, Lane::kGrad));
    // Bound from another slice too.
    const IntrusivePtr<MeshContext> again = Bind(slice, slice->mesh());
    EXPECT_EQ(&again->Group({1}), &root->Group({1}));
    const NoGradGuard no_grad(root->state());
    EXPECT_FALSE(slice->state().grad_enabled());
  });
}

// Two stages: each does work of its own, in a number of calls of its own; then the first hands over to the second.
TEST(MeshSliceTest, SlicesRunDifferentWorkAtOnce) {
  const Tensor full = RandomF64({6, 5}, 4);
  OnMesh("pp=2, dp=2", [&](const IntrusivePtr<MeshContext>& root) {
    const DeviceMesh& mesh = root->mesh();
    const DeviceMesh first = mesh.Slice({{"pp", 0}}), second = mesh.Slice({{"pp", 1}});
    const bool is_first = root->coordinate()[0] == 0;
    const IntrusivePtr<MeshContext> context = Bind(root, is_first ? first : second);
    DTensor x = Lay(context, full, "[dp, -]");
    for (int i = 0; i < (is_first ? 30 : 7); ++i) {
      const DTensor gathered = x.Redistribute(Layout(2, 2));
      const DTensor sum = is_first ? Add(gathered, gathered) : Sum(x, {1}, /*keep_dims=*/true);
      EXPECT_EQ(sum.shape()[1], is_first ? 5 : 1);
    }
    const MeshTransferEnds ends = {first,
                                   Layout::Parse("[dp, -]", first),
                                   second,
                                   Layout::Parse("[-, dp]", second),
                                   {DType::kF64, {6, 5}}};
    const DTensor arrived =
        Redistribute(ends, is_first ? x : DTensor(), is_first ? IntrusivePtr<MeshContext>() : context);
    EXPECT_EQ(arrived.defined(), !is_first);
    if (!is_first) {
      EXPECT_TRUE(SameBits(arrived.FullTensor(), full));
    }
  });
}

TEST(MeshSliceTest, OperandsMixOnlyWithEqualFixedCoordinates) {
  OnMesh("pp=2, dp=2", [](const IntrusivePtr<MeshContext>& root) {
    const DeviceMesh& mesh = root->mesh();
    const int64_t pp = root->coordinate()[0], dp = root->coordinate()[1];
    const IntrusivePtr<MeshContext> stage = Bind(root, mesh.Slice({{"pp", pp}}));
    const IntrusivePtr<MeshContext> same = Bind(root, mesh.Slice({{"pp", pp}}));
    const IntrusivePtr<MeshContext> other = Bind(root, mesh.Slice({{"dp", dp}}));
    const auto ones = [](const IntrusivePtr<MeshContext>& context) {
      return Ones(context, DType::kF32, {2, 3});
    };
    EXPECT_EQ(LayoutText(Add(ones(stage), ones(same))), "[-, -]");
    const std::string types = " in add(f32[2, 3] [-, -], f32[2, 3] [-, -]); redistribute one first";
    EXPECT_EQ(ErrorOf([&] { Add(ones(stage), ones(root)); }),
              absl::StrCat("add: operands lie on different slices of mesh (pp=2, dp=2): dp=2 at pp=", pp,
                           " and pp=2, dp=2", types));
    EXPECT_EQ(ErrorOf([&] { Add(ones(stage), ones(other)); }),
              absl::StrCat("add: operands lie on different slices of mesh (pp=2, dp=2): dp=2 at pp=", pp,
                           " and pp=2 at dp=", dp, types));
    // Where the dim is split, elements go from rank to rank without an op.
    const auto split = [](const IntrusivePtr<MeshContext>& context) {
      return Ones(context, DType::kF32, {2, 3}, Layout::Parse("[dp, -]", context->mesh()));
    };
    for (const int dim : {0, 1}) {
      EXPECT_EQ(
          ErrorOf([&] {
            Concat({split(root), split(stage)}, dim);
          }),
          absl::StrCat(
              "concat: operands lie on different slices of mesh (pp=2, dp=2): pp=2, dp=2 and dp=2 at pp=", pp,
              " in concat(f32[2, 3] [dp, -], f32[2, 3] [dp, -]); redistribute one first"));
    }
    EXPECT_EQ(LayoutText(Concat({split(stage), split(same)}, 0)), "[dp, -]");
  });
}

TEST(MeshSliceTest, NoLayoutNamesAFixedAxis) {
  OnMesh("pp=2, dp=2", [](const IntrusivePtr<MeshContext>& root) {
    const int64_t pp = root->coordinate()[0];
    const DeviceMesh slice = root->mesh().Slice({{"pp", pp}});
    const IntrusivePtr<MeshContext> context = Bind(root, slice);
    EXPECT_THAT(ErrorOf([&] {
                  Layout(slice, 2, {{"pp", Shard(0)}});
                }),
                HasSubstr("'pp' is fixed in this slice of mesh (pp=2, dp=2)"));
    EXPECT_EQ(ErrorOf([&] { Layout::Parse("[pp, -]", slice); }),
              absl::StrCat(
                  "cannot read layout \"[pp, -]\" at position 1: expected an axis of mesh (dp=2 at pp=", pp,
                  "), got 'pp, -]'"));
    // By its number.
    const std::string refused = absl::StrCat("layout [pp, -] names axis 'pp', which is fixed at ", pp,
                                             " in mesh (dp=2 at pp=", pp, "), a slice of (pp=2, dp=2)");
    const Layout named = Layout(2, 2).WithShard(0, 0);
    EXPECT_EQ(ErrorOf([&] { Zeros(context, DType::kF32, {2, 3}, named); }), refused);
    const DTensor x = Zeros(context, DType::kF32, {2, 3});
    EXPECT_EQ(ErrorOf([&] { x.Redistribute(named); }), refused);
  });
}

TEST(MeshSliceTest, RanksOutsideHoldNothing) {
  OnMesh("pp=2, dp=2", [](const IntrusivePtr<MeshContext>& root) {
    const IntrusivePtr<MeshContext> stage = Bind(root, root->mesh().Slice({{"pp", 1}}));
    const bool is_inside = root->coordinate()[0] == 1;
    EXPECT_EQ(stage->is_member(), is_inside);
    const std::string outside =
        is_inside
            ? "nothing was thrown"
            : absl::StrCat("rank ", root->world().rank(),
                           " is not in mesh (dp=2 at pp=1), a slice of (pp=2, dp=2): it holds nothing there "
                           "and cannot compute on it");
    EXPECT_EQ(ErrorOf([&] { Ones(stage, DType::kF32, {2, 3}); }), outside);
    EXPECT_EQ(ErrorOf([&] {
                DTensor::FromLocal(stage, RandomF64({4, 2}, 1), Layout(2, 2), {4, 2});
              }),
              outside);
    EXPECT_EQ(ErrorOf([&] { stage->Group({1}); }), outside);
    EXPECT_EQ(ErrorOf([&] { stage->coordinate(); }), outside);
  });
}

// An alias is written for its axes; what is printed are the axes.
TEST(MeshSliceTest, AliasesInLayouts) {
  const Tensor full = RandomF64({8, 3}, 5);
  OnMesh("pp=2, dp=2, cp=2", [&](const IntrusivePtr<MeshContext>& root) {
    const DeviceMesh mesh = root->mesh().Flatten({"dp", "cp"}, "data");
    const IntrusivePtr<MeshContext> slice = Bind(root, mesh.Slice({{"pp", root->coordinate()[0]}}));
    const Layout rows(slice->mesh(), 2, {{"data", Shard(0)}});
    EXPECT_EQ(rows.ToString(slice->mesh()), "[dp.cp, -]");
    EXPECT_EQ(Layout::Parse("[data, -]", mesh), rows);
    EXPECT_EQ(Layout::Parse("[-, -] P{data:max}", mesh).ToString(mesh), "[-, -] P{dp,cp:max}");
    EXPECT_EQ(Layout::Parse("[-, -] P{pp,data:max}", mesh).ToString(mesh), "[-, -] P{pp,dp,cp:max}");
    EXPECT_EQ(Layout::Parse("[pp.data, -]", mesh).ToString(mesh), "[pp.dp.cp, -]");
    EXPECT_THAT(ErrorOf([&] { Layout::Parse("[data, dp]", mesh); }), HasSubstr("'dp' stands before"));
    EXPECT_TRUE(SameBits(Lay(slice, full, rows).FullTensor(), full));
    EXPECT_EQ(slice->Group({1, 2}).size(), 4);
    // The same numbers on the mesh without the alias: it is no part of the mesh.
    const IntrusivePtr<MeshContext> with_alias = Bind(root, mesh);
    EXPECT_EQ(LayoutText(Add(Lay(root, full, Layout(2, 3)), Lay(with_alias, full, Layout(2, 3)))), "[-, -]");
  });
}

}  // namespace
}  // namespace weft
