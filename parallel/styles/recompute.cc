#include "parallel/styles/recompute.h"

#include <algorithm>
#include <iterator>
#include <memory>
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

// Groups of neighbours among segments that are one of the modules each.
std::vector<RecomputedSegments> Groups(SegmentedModule& model, absl::Span<Module* const> modules,
                                       int64_t every, const ModuleRecompute& how) {
  std::vector<RecomputedSegments> groups;
  const std::vector<Segment>& segments = model.segments();
  for (int i = 0; i < std::ssize(segments); ++i) {
    const bool is_one = segments[i].modules.size() == 1 && segments[i].parameters.empty();
    if (!is_one || std::find(modules.begin(), modules.end(), segments[i].modules[0]) == modules.end())
      continue;
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
  if (segmented != nullptr) groups = Groups(*segmented, modules, Every(style), how);
  int64_t num_grouped = 0;
  for (const RecomputedSegments& group : groups) num_grouped += group.end - group.begin;
  WEFT_REQUIRE(num_grouped == std::ssize(modules), style.ToString(), " on ", modules.size(), " modules, '",
               modules[0]->path(), "' first: ", num_grouped,
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
