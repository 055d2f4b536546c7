#include "ops/cpu/product/contract_plans.h"

#include "gtest/gtest.h"
#include "runtime/device/allocator.h"

namespace weft {
namespace {

using SharedPlan = std::shared_ptr<const ContractPlan>;

Tensor Meta(const Shape& shape, DType dtype = DType::kF32) {
  return Tensor::Empty(MakeMetaAllocator(), dtype, shape);
}

// A product of [m, k] and [k, n].
SharedPlan Plan(int64_t m, int64_t n, int64_t k, DType dtype = DType::kF32) {
  return PlanContraction({"mk", "kn", "mn"}, Meta({m, k}, dtype), Meta({k, n}, dtype), Meta({m, n}, dtype));
}

// Tensors that lie alike have one plan; each thing that a plan depends on tells it from the others.
TEST(ContractPlansTest, APlanIsMadeOncePerWayToLie) {
  const SharedPlan plan = Plan(8, 6, 4);
  EXPECT_EQ(Plan(8, 6, 4), plan);
  EXPECT_EQ(plan->products.size, (GemmSize{8, 6, 4}));
  const Tensor x = Meta({8, 4}), w = Meta({4, 6}), y = Meta({8, 6});
  const SharedPlan others[] = {
      Plan(8, 6, 5),
      Plan(8, 6, 4, DType::kF64),
      PlanContraction({"mk", "kn", "mn"}, Meta({4, 8}).Transpose(0, 1), w, y),
      PlanContraction({"mk", "kn", "mn"}, x, Meta({6, 4}).Transpose(0, 1), y),
      PlanContraction({"mk", "kn", "mn"}, x, w, Meta({6, 8}).Transpose(0, 1)),
      PlanContraction({"mk", "kn", "nm"}, x, w, Meta({6, 8})),
  };
  for (const SharedPlan& other : others) EXPECT_NE(other, plan);
  EXPECT_TRUE(others[2]->products.a_transposed);
  EXPECT_TRUE(others[3]->products.b_transposed);
  EXPECT_EQ(Plan(8, 6, 4), plan);
}

TEST(ContractPlansTest, EmptyTensorsHaveNothingToDo) {
  EXPECT_EQ(Plan(0, 6, 4)->num_sums, 0);
  EXPECT_EQ(Plan(8, 6, 0)->num_sums, 48);
  EXPECT_EQ(Plan(8, 6, 0)->num_summands, 0);
}

// Shapes that never repeat, as those of a growing text, push plans out; who holds one keeps it.
TEST(ContractPlansTest, PlansThatGoAreMadeAgain) {
  const SharedPlan first = Plan(8, 6, 4);
  for (int64_t k = 1; k <= 3000; ++k) EXPECT_EQ(Plan(3, 2, k)->products.size.k, k);
  const SharedPlan again = Plan(8, 6, 4);
  EXPECT_NE(again, first);
  EXPECT_EQ(again->products.size, first->products.size);
}

}  // namespace
}  // namespace weft
