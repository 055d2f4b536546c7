#include "ops/cpu/product/contract_plans.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/shape.h"

namespace weft {
namespace {

// All that a plan depends on.
struct PlanKey {
  struct Operand {
    DimLabels labels;
    Shape shape;
    Shape strides;

    bool operator==(const Operand&) const = default;
  };

  DType dtype;
  Operand x, w, y;

  bool operator==(const PlanKey&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const PlanKey& key) {
    state = H::combine(std::move(state), key.dtype);
    for (const Operand* operand : {&key.x, &key.w, &key.y}) {
      state = H::combine(std::move(state), operand->labels, operand->shape, operand->strides);
    }
    return state;
  }
};

// Changes an f32 plan of many rows to one whose right operand is not transposed, by a copy: oneDNN's product
// of it is a tenth faster than any of ours of the transposed one.
void StraightenRight(const ContractNest& nest, PackedPlan& packed_plan) {
  constexpr int64_t kManyRows = 2048;  // make copying it half a hundredth of the product
  constexpr int64_t kLeastExtent = 48;
  const ContractProducts& plan = packed_plan.plan;
  if (!plan.b_transposed || plan.num_outer() > 1 || plan.num_products() > 1) return;
  if (plan.size.m < kManyRows || std::min(plan.size.n, plan.size.k) < kLeastExtent) return;
  ContractPacking packing = packed_plan.packed.packing;
  (plan.swapped ? packing.x : packing.w) = true;
  const PackedNest packed = PackNest(nest, packing);
  const std::optional<ContractProducts> straight = ProductsOf(packed.nest, /*may_cut_sum=*/true);
  // Dims of the packed operand may merge into a product of another shape, of which nothing is
  // known to be faster.
  const bool is_same = straight.has_value() && !straight->b_transposed && straight->size == plan.size &&
                       straight->swapped == plan.swapped;
  if (is_same) packed_plan = {packed, *straight};
}

ContractPlan MakePlan(const ContractAttributes& labels, const Tensor& x, const Tensor& w, const Tensor& y) {
  const ContractNest nest = ContractNest::Of(labels, x, w, y);
  ContractPlan plan;
  plan.num_sums = nest.num_sums();
  plan.num_summands = nest.num_summands();
  if (plan.num_sums == 0 || plan.num_summands == 0) return plan;
  // A sum of several bf16 products would be rounded each time.
  const bool may_cut_sum = y.dtype() != DType::kBF16;
  PackedPlan packed_plan = PlanWithPacking(nest, may_cut_sum);
  if (y.dtype() == DType::kF32) StraightenRight(nest, packed_plan);
  const PackedNest& packed = packed_plan.packed;
  plan.packing = packed.packing;
  plan.x = packed.x;
  plan.w = packed.w;
  plan.y = packed.y;
  plan.products = packed_plan.plan;
  return plan;
}

}  // namespace

std::shared_ptr<const ContractPlan> PlanContraction(const ContractAttributes& labels, const Tensor& x,
                                                    const Tensor& w, const Tensor& y) {
  // Far more than a model has; programs whose shapes never repeat start anew.
  constexpr size_t kMostPlans = 1024;
  thread_local absl::flat_hash_map<PlanKey, std::shared_ptr<const ContractPlan>> plans;
  const PlanKey key = {.dtype = y.dtype(),
                       .x = {labels.x, x.shape(), x.strides()},
                       .w = {labels.w, w.shape(), w.strides()},
                       .y = {labels.y, y.shape(), y.strides()}};
  if (const auto known = plans.find(key); known != plans.end()) return known->second;
  if (plans.size() >= kMostPlans) plans.clear();
  return plans.emplace(key, std::make_shared<const ContractPlan>(MakePlan(labels, x, w, y))).first->second;
}

}  // namespace weft
