#ifndef WEFT_MESH_REDISTRIBUTION_PRICE_H_
#define WEFT_MESH_REDISTRIBUTION_PRICE_H_

#include <cstdint>
#include <string>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/cost_model.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What it takes to bring a tensor from one layout to another, for code that compares and explains.
struct RedistributionPrice {
  double microseconds = 0;  // predicted
  int64_t num_bytes = 0;    // summed over all ranks, as the ledger counts them
  std::string steps;  // "all_gather(dp)", "reduce_scatter(tp), slice(dp)"; empty if nothing is to be done

  bool operator==(const RedistributionPrice&) const = default;
};

// Prices the plan that a redistribution would carry out.
// Cost:   PlanRedistribution.
RedistributionPrice PriceRedistribution(const Layout& from, const Layout& to, const TensorType& type,
                                        const DeviceMesh& mesh, const CostModel& cost_model);

// Its time alone, as EstimateMicroseconds has it: without a search, for code that chooses between
// many layouts.
double RedistributionMicroseconds(const Layout& from, const Layout& to, const TensorType& type,
                                  const DeviceMesh& mesh, const CostModel& cost_model);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_PRICE_H_
