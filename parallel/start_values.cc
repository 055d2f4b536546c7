#include "parallel/start_values.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "parallel/replicas.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

void CompareValues(MeshContext& context, absl::Span<Parameter* const> parameters,
                   absl::Span<ModuleBuffer* const> buffers) {
  std::vector<NamedValue> values;
  for (const Parameter* parameter : parameters) {
    values.push_back({absl::StrCat("parameter '", parameter->path(), "'"), parameter->at_rest()});
  }
  for (const ModuleBuffer* buffer : buffers) {
    values.push_back({absl::StrCat("buffer '", buffer->path(), "'"), buffer->Value()});
  }
  const std::optional<ReplicaDifference> difference = CompareReplicas(context, values);
  if (!difference) return;
  Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: ", difference->name,
        " starts with other values on ", difference->ToString(),
        ": expected the same on all replicas (the same seed, the same machines), or StartValues::kBroadcast");
}

void Broadcast(const DTensor& value) {
  MeshContext& context = *value.context();
  const ReplicaAxes axes = ReplicaAxesOf(value.layout(), context.mesh());
  if (axes.replicas.empty()) return;
  context.Group(axes.replicas).Broadcast(value.ToLocal(), /*root=*/0, {.tag = context.state().tag()}).Wait();
}

}  // namespace

void AgreeOnStartValues(MeshContext& context, absl::Span<Parameter* const> parameters,
                        absl::Span<ModuleBuffer* const> buffers, StartValues values) {
  if (context.mesh().num_ranks() == 1 || values == StartValues::kTrust) return;
  if (parameters.empty() && buffers.empty()) return;
  if (values == StartValues::kCompare) return CompareValues(context, parameters, buffers);
  const PurposeGuard purpose(context.state(), Purpose::kParam);
  for (const Parameter* parameter : parameters) Broadcast(parameter->at_rest());
  for (const ModuleBuffer* buffer : buffers) Broadcast(buffer->Value());
}

}  // namespace weft
