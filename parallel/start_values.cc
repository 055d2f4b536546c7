#include "parallel/start_values.h"

#include <optional>
#include <vector>

#include "parallel/replicas.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

void CompareValues(MeshContext& context, absl::Span<Parameter* const> parameters) {
  std::vector<NamedValue> values;
  for (const Parameter* parameter : parameters) values.push_back({parameter->path(), parameter->at_rest()});
  const std::optional<ReplicaDifference> difference = CompareReplicas(context, values);
  if (!difference) return;
  Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: parameter '", difference->name,
        "' starts with other values on ", difference->ToString(),
        ": expected the same on all replicas (the same seed, the same machines), or StartValues::kBroadcast");
}

void BroadcastValues(MeshContext& context, absl::Span<Parameter* const> parameters) {
  const PurposeGuard purpose(context.state(), Purpose::kParam);
  for (const Parameter* parameter : parameters) {
    const ReplicaAxes axes = ReplicaAxesOf(parameter->layouts().at_rest, context.mesh());
    if (axes.replicas.empty()) continue;
    const Tensor& piece = parameter->at_rest().ToLocal();
    parameter->at_rest()
        .context()
        ->Group(axes.replicas)
        .Broadcast(piece, /*root=*/0, {.tag = context.state().tag()})
        .Wait();
  }
}

}  // namespace

void AgreeOnStartValues(MeshContext& context, absl::Span<Parameter* const> parameters, StartValues values) {
  if (context.mesh().num_ranks() == 1 || parameters.empty()) return;
  switch (values) {
    case StartValues::kCompare:
      return CompareValues(context, parameters);
    case StartValues::kBroadcast:
      return BroadcastValues(context, parameters);
    case StartValues::kTrust:
      return;
  }
}

}  // namespace weft
