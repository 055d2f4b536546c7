#include "dtensor/dtensor.h"

#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

TEST(DTensorTest, DistributeKeepsTheOwnPieceOfAnyLayout) {
  const Tensor full = WholeNumbers(DType::kF32, {5, 3});
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), 2, {})) {
      const DTensor x = DTensor::Distribute(context, full, layout);
      EXPECT_EQ(x.layout(), layout);
      EXPECT_EQ(x.shape(), full.shape());
      EXPECT_TRUE(SameBits(x.ToLocal(), PieceOf(full, layout, context->mesh(), context->world().rank())))
          << layout;
      EXPECT_EQ(x.LocalBox().shape, x.ToLocal().shape());
      EXPECT_TRUE(SameBits(x.FullTensor(), full)) << layout;
    }
  });
}

// The value is documented as immutable, whatever happens to what it was made from.
TEST(DTensorTest, DistributeCopies) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor full = WholeNumbers(DType::kF32, {2, 2});
    const DTensor x = DTensor::Distribute(context, full, Layout(2, 1));
    FillTensor(full, 0);
    EXPECT_EQ(x.ToLocal().ToVector<float>(), (std::vector<float>{1, 8, 15, 22}));
  });
}

TEST(DTensorTest, DistributeOnMetaHasNoElements) {
  const auto on_meta = [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
    const DTensor x = DTensor::Distribute(context, WholeNumbers(DType::kF32, {5, 3}), Layout(2, 0));
    EXPECT_EQ(x.ToString(), "f32[5, 3] [-, -]");
    EXPECT_EQ(x.ToLocal().shape(), Shape({5, 3}));
    EXPECT_EQ(x.ToLocal().device().type, DeviceType::kMeta);
  };
  RunRanks(1, on_meta, {.device = DeviceType::kMeta});
}

TEST(DTensorTest, FromLocalSharesMemoryAndTellsTheBox) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const int64_t rank = context->coordinate()[0];
    const Tensor local =
        Tensor::FromValues<float>({rank == 0 ? 2 : 1}, std::vector<float>(rank == 0 ? 2 : 1, 7));
    const DTensor x = DTensor::FromLocal(context, local, Layout::Parse("[a]", context->mesh()), {3});
    EXPECT_EQ(x.ToLocal().buffer(), local.buffer());
    EXPECT_EQ(x.LocalBox().offset, Shape({rank * 2}));
    EXPECT_EQ(x.ToString(), "f32[3] [a]");
    EXPECT_EQ(Sum(x).Item(), 21);
  });
}

TEST(DTensorTest, PartialTermsAreSummed) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const float mine = context->coordinate()[0] == 0 ? 10 : -3;
    const DTensor x = DTensor::FromLocal(context, Tensor::FromValues<float>({}, {mine}),
                                         Layout::Parse("[] P{a}", context->mesh()), {});
    EXPECT_EQ(x.ToLocal().ToVector<float>()[0], mine);
    EXPECT_EQ(x.Item(), 7);
    EXPECT_EQ(LedgerText(*context), "all_reduce a loss");
  });
}

TEST(DTensorTest, RedistributeKeepsTheValue) {
  const Tensor full = WholeNumbers(DType::kF32, {5, 3});
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, full, "[b.a, -]");
    const DTensor y = x.Redistribute(Layout::Parse("[-, a] P{b}", context->mesh()));
    EXPECT_EQ(LayoutText(y), "[-, a] P{b}");
    EXPECT_EQ(LayoutText(x), "[b.a, -]");  // immutable
    EXPECT_TRUE(SameBits(y.FullTensor(), full));
    // Nothing to do, and nothing to record: the same handle.
    EXPECT_EQ(x.Redistribute(x.layout()).impl(), x.impl());
    EXPECT_FALSE(y.requires_grad());
  });
}

TEST(DTensorTest, LeavesAndDetach) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {2}, 1, Layout::Parse("[a]", context->mesh()));
    EXPECT_FALSE(x.requires_grad());
    const DTensor leaf = x.RequiresGrad();
    EXPECT_FALSE(x.requires_grad());  // handles are values
    EXPECT_TRUE(leaf.requires_grad());
    EXPECT_FALSE(leaf.grad().defined());
    EXPECT_EQ(leaf.layout(), x.layout());
    const DTensor y = leaf + leaf;
    EXPECT_TRUE(y.requires_grad());
    EXPECT_FALSE(y.Detach().requires_grad());
    EXPECT_EQ(y.Detach().ToLocal().buffer(), y.ToLocal().buffer());
    EXPECT_EQ(x.Detach().impl(), x.impl());
    EXPECT_FALSE(DTensor().Detach().defined());
    EXPECT_EQ(ErrorOf([&] { y.grad(); }), "grad: only leaves keep their gradient; this is a result of add");
  });
}

TEST(DTensorTest, Misuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor none;
    EXPECT_FALSE(none.defined());
    EXPECT_EQ(none.ToString(), "undefined");
    const std::string undefined = "this DTensor is undefined (default-constructed)";
    EXPECT_EQ(ErrorOf([&] { none.layout(); }), undefined);
    EXPECT_EQ(ErrorOf([&] { none.shape(); }), undefined);
    EXPECT_EQ(ErrorOf([&] { none.ToLocal(); }), undefined);
    EXPECT_EQ(ErrorOf([&] { none.context(); }), undefined);
    EXPECT_EQ(ErrorOf([&] { none.FullTensor(); }), undefined);
    EXPECT_EQ(ErrorOf([&] { none.RequiresGrad(); }), undefined);
    const DTensor x = Full(context, DType::kF32, {2, 3}, 1);
    const Layout partial = Layout::Parse("[-, -] P{a}", context->mesh());
    EXPECT_EQ(ErrorOf([&] { x.Item(); }), "Item: expected a tensor of one element, got f32[2, 3] [-, -]");
    EXPECT_EQ(ErrorOf([&] { x.grad(); }),
              "grad: this tensor wants no gradient; make it a leaf with RequiresGrad()");
    EXPECT_THAT(ErrorOf([&] { x.Redistribute(Layout(1, 1)); }),
                HasSubstr("has 1 dims and 1 axes; the tensor is f32[2, 3] [-, -] on mesh a=2"));
    EXPECT_THAT(ErrorOf([&] { x.Redistribute(Layout(2, 2)); }), HasSubstr("has 2 dims and 2 axes"));
    EXPECT_THAT(ErrorOf([&] { x.Redistribute(partial).RequiresGrad(); }),
                HasSubstr("which cannot be [-, -] P{a}; redistribute it first"));
    EXPECT_THAT(ErrorOf([&] { Full(context, DType::kI32, {2}, 1).RequiresGrad(); }),
                HasSubstr("only floating tensors have gradients, got i32[2] [-]"));
    const Tensor local = WholeNumbers(DType::kF32, {2, 3});
    EXPECT_THAT(ErrorOf([&] {
                  DTensor::FromLocal(context, local, Layout::Parse("[a, -]", context->mesh()), {2, 3});
                }),
                HasSubstr("layout [a, -] of f32[2, 3] gives this rank [1, 3], got f32[2, 3]"));
    EXPECT_THAT(ErrorOf([&] { DTensor::Distribute(context, local, partial); }),
                HasSubstr("cannot make the terms of [-, -] P{a}"));
  });
}

// Of the terms {{1, 0}, {1, 0}}, summed over a and averaged over b, the value was 1, and minus it 0.
TEST(DTensorTest, AveragesOfIntegersBesideAnotherPartialAreRefused) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout mixed = Layout::Parse("[-] P{a:sum,b:avg}", context->mesh());
    const Tensor term = FromDoubles(DType::kI32, {1}, {context->coordinate()[1] == 0 ? 1.0 : 0.0});
    const std::string message =
        "layout [-] P{a:sum,b:avg} of i32: averages of i32 depend on the order of the axes, expected avg "
        "over one axis and no "
        "other Partial";
    EXPECT_EQ(ErrorOf([&] { DTensor::FromLocal(context, term, mixed, {1}); }), message);
    EXPECT_EQ(ErrorOf([&] { DTensor::FromLocal(context, term, mixed); }), message);
    EXPECT_EQ(ErrorOf([&] { Full(context, DType::kI32, {1}, 3).Redistribute(mixed); }), message);
    const Layout average = Layout::Parse("[-] P{b:avg}", context->mesh());
    EXPECT_EQ(Neg(Full(context, DType::kI32, {1}, 3).Redistribute(average)).Item(), -3);
    const Tensor halves = FromDoubles(DType::kF32, {1}, {context->coordinate()[1] == 0 ? 1.0 : 0.0});
    EXPECT_EQ(Neg(DTensor::FromLocal(context, halves, mixed, {1})).Item(), -1);
  });
}

}  // namespace
}  // namespace weft
