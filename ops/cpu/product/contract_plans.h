#ifndef WEFT_OPS_CPU_PRODUCT_CONTRACT_PLANS_H_
#define WEFT_OPS_CPU_PRODUCT_CONTRACT_PLANS_H_

#include <cstdint>
#include <memory>

#include "ops/product/contract.h"
#include "ops/product/contract_products.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// How a contraction runs on a CPU: its products, and what is copied for them.
struct ContractPlan {
  int64_t num_sums = 0;      // elements of y; 0: there is nothing to do
  int64_t num_summands = 0;  // of each; 0: they are 0, and there are no products
  ContractPacking packing;
  DimLabels x, w, y;  // of packed tensors: in which order their dims lie
  ContractProducts products;
};

// The plan for tensors that lie so. To plan costs several microseconds, as much as a small product: of the plans that this
// thread has made, as many as models have are kept.
//
// Threads: any; each keeps its own.
std::shared_ptr<const ContractPlan> PlanContraction(const ContractAttributes& labels, const Tensor& x,
                                                    const Tensor& w, const Tensor& y);

}  // namespace weft

#endif  // WEFT_OPS_CPU_PRODUCT_CONTRACT_PLANS_H_
