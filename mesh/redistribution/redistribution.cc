#include "mesh/redistribution/redistribution.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

std::string StepText(const RedistributionStep& step, const DeviceMesh* mesh) {
  return absl::StrCat(StepKindName(step.kind), "(",
                      absl::StrJoin(step.axes, ",",
                                    [&](std::string* out, int axis) {
                                      if (mesh != nullptr) {
                                        absl::StrAppend(out, mesh->axis_name(axis));
                                      } else {
                                        absl::StrAppend(out, "a", axis);
                                      }
                                    }),
                      ")");
}

std::string PlanText(const Redistribution& plan, const DeviceMesh* mesh) {
  const auto layout_text = [&](const Layout& layout) {
    return mesh != nullptr ? layout.ToString(*mesh) : layout.ToString();
  };
  std::string text = layout_text(plan.from);
  for (const RedistributionStep& step : plan.steps) {
    absl::StrAppend(&text, " -", StepText(step, mesh), "-> ", layout_text(step.result));
  }
  return text;
}

}  // namespace

absl::string_view StepKindName(StepKind kind) {
  switch (kind) {
    case StepKind::kAllGather:
      return "all_gather";
    case StepKind::kReduceScatter:
      return "reduce_scatter";
    case StepKind::kAllReduce:
      return "all_reduce";
    case StepKind::kAllToAll:
      return "all_to_all";
    case StepKind::kPermute:
      return "permute";
    case StepKind::kSendRegions:
      return "send_regions";
    case StepKind::kSlice:
      return "slice";
    case StepKind::kToPartial:
      return "to_partial";
  }
  return "?";
}

bool Communicates(StepKind kind) { return kind != StepKind::kSlice && kind != StepKind::kToPartial; }

std::string Redistribution::ToString(const DeviceMesh& mesh) const { return PlanText(*this, &mesh); }
std::string Redistribution::ToString() const { return PlanText(*this, nullptr); }

void CheckEnds(const Layout& from, const Layout& to, const DeviceMesh& mesh) {
  WEFT_REQUIRE(from.ndim() == to.ndim(), "cannot redistribute ", from.ToString(mesh), " to ",
               to.ToString(mesh), ": one has ", from.ndim(), " dims, the other ", to.ndim());
  CheckOnMesh(from, mesh);
  CheckOnMesh(to, mesh);
}

std::ostream& operator<<(std::ostream& out, StepKind kind) { return out << StepKindName(kind); }

std::ostream& operator<<(std::ostream& out, const RedistributionStep& step) {
  return out << "-" << StepText(step, nullptr) << "-> " << step.result;
}

std::ostream& operator<<(std::ostream& out, const Redistribution& plan) { return out << plan.ToString(); }

}  // namespace weft
