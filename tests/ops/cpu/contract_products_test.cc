#include "ops/product/contract_products.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

Tensor Meta(const Shape& shape) { return Tensor::Empty(MakeMetaAllocator(), DType::kF32, shape); }

PackedPlan Plan(const ContractAttributes& labels, const Tensor& x, const Tensor& w, const Shape& y,
                bool may_cut_sum = true) {
  return PlanWithPacking(ContractNest::Of(labels, x, w, Meta(y)), may_cut_sum);
}

constexpr ContractPacking kNoPacking;

// The products of GPT-2 (b 4, s 64, d 768, h 12, e 64), as their tensors lie: each must be one matrix
// product.
TEST(ContractProductsTest, TransformerProductsAreOneProductWithoutCopies) {
  struct Case {
    ContractAttributes labels;
    Shape x, w, y;
    GemmSize size;
    bool swapped, a_transposed, b_transposed;
  };
  const Shape x = {4, 64, 768};
  const Shape qkv = {4, 64, 3, 12, 64};
  const Shape w_qkv = {768, 3, 12, 64};
  const Shape heads = {4, 64, 12, 64};
  const Case cases[] = {
      {{"bsd", "dthe", "bsthe"}, x, w_qkv, qkv, {256, 2304, 768}, false, false, false},
      {{"bsthe", "dthe", "bsd"}, qkv, w_qkv, x, {256, 768, 2304}, false, false, true},
      {{"bsd", "bsthe", "dthe"}, x, qkv, w_qkv, {768, 2304, 256}, false, true, false},
      {{"bshe", "hed", "bsd"}, heads, {12, 64, 768}, x, {256, 768, 768}, false, false, false},
      {{"bsd", "vd", "bsv"}, x, {50304, 768}, {4, 64, 50304}, {256, 50304, 768}, false, false, true},
      {{"bsd", "bsv", "vd"}, x, {4, 64, 50304}, {50304, 768}, {50304, 768, 256}, true, true, false},
  };
  for (const Case& c : cases) {
    const auto [packed, plan] = Plan(c.labels, Meta(c.x), Meta(c.w), c.y);
    EXPECT_EQ(packed.packing, kNoPacking) << c.labels.y.text();
    EXPECT_EQ(plan.num_outer(), 1);
    EXPECT_EQ(plan.num_products(), 1);
    EXPECT_EQ(plan.size, c.size) << c.labels.y.text();
    EXPECT_EQ(plan.swapped, c.swapped) << c.labels.y.text();
    EXPECT_EQ(plan.a_transposed, c.a_transposed) << c.labels.y.text();
    EXPECT_EQ(plan.b_transposed, c.b_transposed) << c.labels.y.text();
  }
}

// q of a packed qkv [b, s, 3, h, e]: b and s merge, rows are 3 h e apart.
TEST(ContractProductsTest, SlicesOfPackedTensorsAreNotCopied) {
  const Tensor q = Meta({4, 64, 3, 12, 64}).Select(2, 1);
  const auto [packed, plan] = Plan({"bshe", "hed", "bsd"}, q, Meta({12, 64, 768}), {4, 64, 768});
  EXPECT_EQ(packed.packing, kNoPacking);
  EXPECT_EQ(plan.size, (GemmSize{256, 768, 768}));
  EXPECT_EQ(plan.lda, 3 * 12 * 64);
}

TEST(ContractProductsTest, BatchDimsAreOuterLoops) {
  const auto [packed, plan] =
      Plan({"bhse", "bhte", "bhst"}, Meta({2, 3, 100, 8}), Meta({2, 3, 90, 8}), {2, 3, 100, 90});
  EXPECT_EQ(packed.packing, kNoPacking);
  EXPECT_EQ(plan.num_outer(), 6);
  EXPECT_EQ(plan.size, (GemmSize{100, 90, 8}));
  EXPECT_TRUE(plan.b_transposed);
}

// An inner batch dim leaves no unit stride: both operands and the result are copied.
TEST(ContractProductsTest, PacksWhereNoProductFits) {
  const auto [packed, plan] = Plan({"mkb", "knb", "mnb"}, Meta({64, 64, 4}), Meta({64, 64, 4}), {64, 64, 4});
  EXPECT_EQ(packed.packing, (ContractPacking{.x = true, .w = true, .y = true}));
  EXPECT_EQ(plan.num_outer(), 4);
  EXPECT_EQ(plan.size, (GemmSize{64, 64, 64}));
  EXPECT_EQ(packed.x.text(), "bmk");
  EXPECT_EQ(packed.w.text(), "bkn");
  EXPECT_EQ(packed.y.text(), "bmn");
}

// Row stride 0 is no matrix to BLAS; a large expanded operand is worth one copy.
TEST(ContractProductsTest, ExpandedOperandsArePackedOrLooped) {
  const Tensor expanded = Meta({1, 128}).Expand({200, 128});
  const auto [packed, plan] = Plan({"mk", "kn", "mn"}, expanded, Meta({128, 300}), {200, 300});
  EXPECT_TRUE(packed.packing.x);
  EXPECT_EQ(plan.size, (GemmSize{200, 300, 128}));
}

// Padded rows of x and w do not merge: cut for f32, copied where a cut would round twice.
TEST(ContractProductsTest, SumsAreCutOnlyWhereTheyMayBe) {
  const Tensor x = Meta({3, 70, 512}).Slice(1, 0, 64);
  const Tensor w = Meta({3, 70, 512}).Slice(1, 0, 64);
  const ContractAttributes labels = {"bsd", "bsv", "dv"};
  const auto [cut, cut_plan] = Plan(labels, x, w, {512, 512});
  EXPECT_EQ(cut.packing, kNoPacking);
  EXPECT_EQ(cut_plan.num_products(), 3);
  const auto [copied, copied_plan] = Plan(labels, x, w, {512, 512}, /*may_cut_sum=*/false);
  EXPECT_TRUE(copied.packing.x && copied.packing.w);
  EXPECT_EQ(copied_plan.num_products(), 1);
  EXPECT_EQ(copied_plan.size, (GemmSize{512, 512, 192}));
}

}  // namespace
}  // namespace weft
