#include "parallel/start_values.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/agreement.h"
#include "parallel/replicas.h"
#include "parallel/stage_replicas.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// What is wrong, if anything is.
std::string TextOf(const std::optional<ReplicaDifference>& difference) {
  if (!difference) return "";
  return absl::StrCat(
      "Parallelize: ", difference->name, " starts with other values on ", difference->ToString(),
      ": expected the same on all replicas (the same seed, the same machines), or StartValues::kBroadcast");
}

void ThrowIf(const std::string& text) {
  if (!text.empty()) Throw(absl::StatusCode::kFailedPrecondition, text);
}

std::string CompareValues(MeshContext& context, absl::Span<Parameter* const> parameters,
                          absl::Span<ModuleBuffer* const> buffers) {
  std::vector<NamedValue> values;
  for (const Parameter* parameter : parameters) {
    values.push_back({absl::StrCat("parameter '", parameter->path(), "'"), parameter->at_rest()});
  }
  for (const ModuleBuffer* buffer : buffers) {
    values.push_back({absl::StrCat("buffer '", buffer->path(), "'"), buffer->Value()});
  }
  return TextOf(CompareReplicas(context, values));
}

void CompareStages(absl::Span<const SharedParameter> shared, const ModelStages& stages) {
  std::vector<StagedValue> values;
  for (const auto& [parameter, indices] : shared) {
    values.push_back({.name = absl::StrCat("parameter '", parameter->path(), "'")});
    if (parameter->is_here()) values.back().tensors = {parameter->at_rest()};
  }
  ThrowIf(TextOf(CompareAcrossStages(stages, values)));
}

void Broadcast(const DTensor& value) {
  MeshContext& context = *value.context();
  const ReplicaAxes axes = ReplicaAxesOf(value.layout(), context.mesh());
  if (axes.replicas.empty()) return;
  context.Group(axes.replicas).Broadcast(value.ToLocal(), /*root=*/0, {.tag = context.state().tag()}).Wait();
}

// From the first of the ranks at these indices along the pipeline's axis.
void BroadcastAlong(const ModelStages& stages, absl::Span<const int> indices, const DTensor& value) {
  MeshContext& context = *value.context();
  RankState& state = context.state();
  const std::vector<int> ranks = RanksAlongPipeline(stages, indices);
  const bool on_host =
      context.is_host_side() && state.world().allocator()->device().type == DeviceType::kCuda;
  Communicator& group =
      on_host ? state.HostGroup("shared by stages", ranks) : state.Group("shared by stages", ranks);
  group.Broadcast(value.ToLocal(), /*root=*/0, {.tag = state.tag()}).Wait();
}

}  // namespace

void AgreeOnStartValues(MeshContext& context, absl::Span<Parameter* const> parameters,
                        absl::Span<ModuleBuffer* const> buffers, StartValues values) {
  if (context.mesh().num_ranks() == 1 || values == StartValues::kTrust) return;
  if (parameters.empty() && buffers.empty()) return;
  if (values == StartValues::kCompare) return ThrowIf(CompareValues(context, parameters, buffers));
  const PurposeGuard purpose(context.state(), Purpose::kParam);
  for (const Parameter* parameter : parameters) Broadcast(parameter->at_rest());
  for (const ModuleBuffer* buffer : buffers) Broadcast(buffer->Value());
}

void AgreeOnStartValues(MeshContext& whole, MeshContext& part, absl::Span<Parameter* const> parameters,
                        absl::Span<ModuleBuffer* const> buffers, StartValues values) {
  const bool is_whole = part.mesh().num_ranks() == whole.mesh().num_ranks();
  const bool is_meta = whole.allocator()->device().type == DeviceType::kMeta;
  if (values != StartValues::kCompare || is_whole || is_meta) {
    return AgreeOnStartValues(part, parameters, buffers, values);
  }
  for (const std::string& text : GatherTexts(whole, CompareValues(part, parameters, buffers))) ThrowIf(text);
}

void AgreeAcrossStages(SegmentedModule& model, const ModelStages& stages, StartValues values) {
  if (values == StartValues::kTrust) return;
  const std::vector<SharedParameter> shared = ParametersOfSeveralStages(model, stages);
  if (values == StartValues::kCompare) return CompareStages(shared, stages);
  const PurposeGuard purpose(stages.context->state(), Purpose::kParam);
  for (const auto& [parameter, indices] : shared) {
    if (parameter->is_here()) BroadcastAlong(stages, indices, parameter->at_rest());
  }
}

}  // namespace weft
