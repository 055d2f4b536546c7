#include "dtensor/redistribution/redistribute.h"

#include "dtensor/context/redistribution_cache.h"
#include "dtensor/redistribution/executor.h"
#include "mesh/redistribution/planner.h"

namespace weft {

std::shared_ptr<const LoweredRedistribution> LowerCached(MeshContext& context, const TensorType& type,
                                                         const Layout& from, const Layout& to) {
  RedistributionCache& cache = context.redistribution_cache();
  std::shared_ptr<const LoweredRedistribution> lowered = cache.Find(from, to, type);
  if (lowered == nullptr) {
    const DeviceMesh& mesh = context.mesh();
    Redistribution plan = PlanRedistribution(from, to, type, mesh, context.cost_model());
    lowered = cache.Insert(from, to, type, Lower(std::move(plan), type.shape, mesh, context.coordinate()));
  }
  return lowered;
}

Tensor RedistributeLocal(MeshContext& context, const Tensor& local, const TensorType& type,
                         const Layout& from, const Layout& to) {
  if (from == to) return local;
  return RunRedistribution(context, local, *LowerCached(context, type, from, to));
}

}  // namespace weft
