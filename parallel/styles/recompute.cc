#include "parallel/styles/recompute.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/segmented_module.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kMostNeighbours = int64_t{1} << 31;

KeptOps Keep(const Style& style) {
  const std::string words = style.Get<std::string>("keep").value_or("");
  if (words.empty()) return KeptOps();
  return KeptOps(std::vector<std::string>(absl::StrSplit(words, ',')));
}

int64_t Every(const Style& style) { return style.Get<int64_t>("every").value_or(1); }

void Check(const Style& style) { Keep(style); }

// Whether the segment is one module. Beside it may stand the parameters that the module's tied slots name.
bool IsOneModule(const Segment& segment) {
  if (segment.modules.size() != 1) return false;
  const std::vector<Parameter*> tied = segment.modules[0]->TiedParameters();
  return std::all_of(segment.parameters.begin(), segment.parameters.end(), [&](Parameter* parameter) {
    return std::find(tied.begin(), tied.end(), parameter) != tied.end();
  });
}

// Groups of neighbours among segments that are one of the modules each. `grouped`: gets these modules.
std::vector<RecomputedSegments> Groups(SegmentedModule& model, absl::Span<Module* const> modules,
                                       int64_t every, const ModuleRecompute& how,
                                       std::set<const Module*>* grouped) {
  std::vector<RecomputedSegments> groups;
  const std::vector<Segment>& segments = model.segments();
  for (int i = 0; i < std::ssize(segments); ++i) {
    if (!IsOneModule(segments[i])) continue;
    Module* const module = segments[i].modules[0];
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) continue;
    grouped->insert(module);
    const bool joins = !groups.empty() && groups.back().end == i && i - groups.back().begin < every;
    if (!joins) groups.push_back({.begin = i, .end = i, .how = how});
    groups.back().end = i + 1;
  }
  return groups;
}

void Apply(const Style& style, Module& model, absl::Span<Module* const> modules) {
  const ModuleRecompute how = {
      .keep = Keep(style),
      .last_microbatch = style.Get<bool>("last_microbatch").value_or(true),
  };
  if (Every(style) == 1) {
    const auto shared = std::make_shared<const ModuleRecompute>(how);
    for (Module* module : modules) module->set_recompute(shared);
    return;
  }
  auto* const segmented = dynamic_cast<SegmentedModule*>(&model);
  std::vector<RecomputedSegments> groups;
  std::set<const Module*> grouped;
  if (segmented != nullptr) groups = Groups(*segmented, modules, Every(style), how, &grouped);
  WEFT_REQUIRE(grouped.size() == modules.size(), style.ToString(), " on ", modules.size(), " modules, '",
               modules[0]->path(), "' first: ", grouped.size(),
               " of them are segments of the model; every = ", Every(style), " is of segments");
  segmented->add_recomputed_segments(std::move(groups));
}

const RegisterStyle kRegister({
    .name = "Recompute",
    .has_axis = false,
    .fields =
        {
            {.name = "keep", .type = StyleField::Type::kWord},
            {.name = "every", .type = StyleField::Type::kWholeNumber, .least = 1, .most = kMostNeighbours},
            {.name = "last_microbatch", .type = StyleField::Type::kFlag},
        },
    .reach = StyleReach::kBorder,
    .check = Check,
    .apply = Apply,
});

}  // namespace

Style Recompute(const RecomputeStyleOptions& options) {
  Style style = {.name = "Recompute"};
  if (!options.keep.empty()) style = style.With("keep", StyleValue(absl::StrJoin(options.keep, ",")));
  if (options.every != 1) style = style.With("every", StyleValue(options.every));
  if (!options.last_microbatch) style = style.With("last_microbatch", StyleValue(false));
  return style;
}

}  // namespace weft
