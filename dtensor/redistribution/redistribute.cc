#include "dtensor/redistribution/redistribute.h"

#include "dtensor/redistribution/executor.h"
#include "mesh/redistribution/planner.h"

namespace weft {

Tensor RedistributeLocal(MeshContext& context, const Tensor& local, const TensorType& type,
                         const Layout& from, const Layout& to) {
  if (from == to) return local;
  RedistributionCache& cache = context.redistribution_cache();
  std::shared_ptr<const LoweredRedistribution> lowered = cache.Find(from, to, type);
  if (lowered == nullptr) {
    const DeviceMesh& mesh = context.mesh();
    Redistribution plan = PlanRedistribution(from, to, type.shape, type.dtype, mesh, context.cost_model());
    lowered = cache.Insert(from, to, type, Lower(std::move(plan), type.shape, mesh, context.coordinate()));
  }
  return RunRedistribution(context, local, *lowered);
}

}  // namespace weft
