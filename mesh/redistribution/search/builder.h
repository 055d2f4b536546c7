#ifndef WEFT_MESH_REDISTRIBUTION_SEARCH_BUILDER_H_
#define WEFT_MESH_REDISTRIBUTION_SEARCH_BUILDER_H_

#include "mesh/redistribution/move.h"
#include "mesh/redistribution/redistribution.h"

namespace weft {

// Puts a plan together, step after step: leaves out steps that change nothing, joins slices that follow each
// other. Borrows the mesh.
class RedistributionBuilder {
 public:
  RedistributionBuilder(const Layout& from, const Layout& to, const DeviceMesh& mesh)
      : mesh_(mesh), plan_{.from = from, .to = to, .steps = {}} {}

  // The layout so far.
  const Layout& state() const { return plan_.steps.empty() ? plan_.from : plan_.steps.back().result; }

  void Append(StepKind kind, AxisMask axes, ReduceOp op, const Layout& result);
  void Slice(const Layout& result);
  // The shortest move, which may be a slice.
  void MoveTo(const Layout& result, const Shape& shape);
  // Whatever is Partial in `target` and not yet.
  void EnterPartials(const Layout& target);

  // Errors: Internal if the plan does not arrive.
  Redistribution Finish() &&;

 private:
  const DeviceMesh& mesh_;
  Redistribution plan_;
};

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_SEARCH_BUILDER_H_
