#include "parallel/pipeline/cut.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/pipeline/stages.h"
#include "parallel/styles/pipeline.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// The segments that the entry names: [begin, end).
struct SegmentRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

SegmentRange NamedSegments(const ModelTree& tree, const ModelTree::Matches& matches,
                           const std::vector<Segment>& segments) {
  absl::flat_hash_set<const Module*> named;
  for (const int module : matches.modules) named.insert(tree.modules()[module]);
  std::vector<int> found;
  for (int i = 0; i < std::ssize(segments); ++i) {
    const auto& modules = segments[i].modules;
    if (std::any_of(modules.begin(), modules.end(), [&](Module* m) { return named.count(m) > 0; })) {
      found.push_back(i);
    }
  }
  WEFT_REQUIRE(!found.empty(), "no segment of the model runs one of the modules that this names: '",
               tree.module_path(matches.modules[0]), "' is not one that a segment lists");
  const SegmentRange range = {found.front(), found.back() + 1};
  WEFT_REQUIRE(range.size() == std::ssize(found), "the segments that this names, ",
               absl::StrJoin(found, ", "), ", do not follow each other");
  return range;
}

// How many of the named segments each stage has.
std::vector<int> StageSizes(const std::vector<Segment>& segments, const SegmentRange& named,
                            const PipelineOptions& options, int num_stages) {
  if (!options.sizes.empty()) {
    const bool fits =
        std::ssize(options.sizes) == num_stages &&
        std::all_of(options.sizes.begin(), options.sizes.end(),
                    [&](int64_t n) { return n > 0 && n <= named.size(); }) &&  // so that the sum fits
        std::accumulate(options.sizes.begin(), options.sizes.end(), int64_t{0}) == named.size();
    WEFT_REQUIRE(fits, "sizes: expected ", num_stages, " numbers above 0 that add up to the ", named.size(),
                 " segments, got ", absl::StrJoin(options.sizes, " "));
    return {options.sizes.begin(), options.sizes.end()};
  }
  WEFT_REQUIRE(options.costs.empty() || options.costs.size() == segments.size(), "costs: expected ",
               segments.size(), " numbers, one for each segment of the model, got ", options.costs.size());
  std::vector<double> costs(named.size(), 0);
  for (int i = 0; i < std::ssize(segments); ++i) {
    const double cost = options.costs.empty() ? segments[i].cost : options.costs[i];
    costs[std::clamp(i, named.begin, named.end - 1) - named.begin] += cost;  // the ends take what is outside
  }
  return BalanceChain(costs, num_stages);
}

void AddStage(std::vector<int>* stages, int stage) {
  if (stages->empty() || stages->back() != stage) stages->push_back(stage);
}

// The number of each.
template <class T>
absl::flat_hash_map<const T*, int> NumbersOf(const std::vector<T*>& all) {
  absl::flat_hash_map<const T*, int> numbers;
  for (int i = 0; i < std::ssize(all); ++i) numbers[all[i]] = i;
  return numbers;
}

// The number of what a segment names.
template <class T>
int NumberOf(const absl::flat_hash_map<const T*, int>& numbers, const T* named, int segment,
             const char* what) {
  const auto found = numbers.find(named);
  WEFT_REQUIRE(found != numbers.end(), "segment ", segment, " names ", what, " '", named->path(),
               "' of another model: expected one of its own");
  return found->second;
}

}  // namespace

StageCut CutIntoStages(const ModelTree& tree, const ModelTree::Matches& matches, const DeviceMesh& mesh,
                       const Style& style) {
  auto* const model = dynamic_cast<SegmentedModule*>(tree.modules()[0]);
  WEFT_REQUIRE(model != nullptr, "the model, a ", tree.module_type(0),
               ", is no SegmentedModule (dtensor/nn/segmented_module.h): nothing says where it may be cut");
  const std::vector<Segment>& segments = model->segments();
  const PipelineOptions options = PipelineOptionsOf(style);
  const int ranks = static_cast<int>(mesh.axis_size(mesh.FindAxis(style.axis)));
  StageCut cut = {
      .stage_ranks = StageRanks(options.order, ranks, static_cast<int>(options.chunks)),
      .first_segments = {0},
      .module_stages = std::vector<std::vector<int>>(tree.modules().size()),
      .parameter_stages = std::vector<std::vector<int>>(tree.parameters().size()),
  };
  const SegmentRange named = NamedSegments(tree, matches, segments);
  int end = named.begin;
  for (const int size : StageSizes(segments, named, options, static_cast<int>(cut.stage_ranks.size()))) {
    cut.first_segments.push_back(end += size);
  }
  cut.first_segments.back() = static_cast<int>(segments.size());

  const absl::flat_hash_map<const Module*, int> modules = NumbersOf(tree.modules());
  const absl::flat_hash_map<const Parameter*, int> parameters = NumbersOf(tree.parameters());
  for (int stage = 0; stage + 1 < std::ssize(cut.first_segments); ++stage) {
    for (int i = cut.first_segments[stage]; i < cut.first_segments[stage + 1]; ++i) {
      ModelTree::Matches in_segment;
      for (const Module* module : segments[i].modules) {
        in_segment.modules.push_back(NumberOf(modules, module, i, "module"));
      }
      for (const Parameter* parameter : segments[i].parameters) {
        in_segment.parameters.push_back(NumberOf(parameters, parameter, i, "parameter"));
      }
      std::sort(in_segment.modules.begin(), in_segment.modules.end());
      for (const int module : tree.ModulesBelow(in_segment)) AddStage(&cut.module_stages[module], stage);
      for (const int parameter : tree.ParametersBelow(in_segment)) {
        AddStage(&cut.parameter_stages[parameter], stage);
      }
    }
  }
  for (int i = 0; i < std::ssize(tree.parameters()); ++i) {
    WEFT_REQUIRE(!cut.parameter_stages[i].empty(), "parameter '", tree.parameter_path(i),
                 "' is in no segment of the model: no stage would have it");
  }
  return cut;
}

}  // namespace weft
