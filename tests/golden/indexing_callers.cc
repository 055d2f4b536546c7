#include "tests/golden/indexing_callers.h"

#include <optional>

#include "dtensor/functions.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using Operands = std::vector<DTensor>;
using Outputs = std::vector<DTensor>;

GoldenCaller One(const std::function<DTensor(const Operands&, const Json&)>& function) {
  return [=](const Operands& x, const Json& a) { return Outputs{function(x, a)}; };
}

std::optional<int64_t> EndOf(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<int64_t>(json.get<int64_t>());
}

SliceRange RangeOf(const Json& start, const Json& stop, const Json& step) {
  return {.start = EndOf(start), .stop = EndOf(stop), .step = step.get<int64_t>()};
}
SliceRange RangeOf(const Json& a) { return RangeOf(a["start"], a["stop"], a["step"]); }

std::vector<SliceRange> RangesOf(const Json& a) {
  std::vector<SliceRange> ranges;
  for (const Json& range : a["ranges"]) ranges.push_back(RangeOf(range[0], range[1], range[2]));
  return ranges;
}

ScatterReduceOptions ReduceOptionsOf(const Json& a) {
  static const std::map<std::string, ScatterReduction> kByName = {{"sum", ScatterReduction::kSum},
                                                                  {"prod", ScatterReduction::kProd},
                                                                  {"mean", ScatterReduction::kMean},
                                                                  {"amax", ScatterReduction::kAmax},
                                                                  {"amin", ScatterReduction::kAmin}};
  return {.reduction = kByName.at(a["reduce"].get<std::string>()),
          .include_self = a["include_self"].get<bool>()};
}

InterpolateOptions InterpolateOptionsOf(const Json& a) {
  static const std::map<std::string, ResampleMode> kByName = {
      {"nearest", ResampleMode::kNearest},  {"nearest-exact", ResampleMode::kNearestExact},
      {"linear", ResampleMode::kLinear},    {"bilinear", ResampleMode::kLinear},
      {"trilinear", ResampleMode::kLinear}, {"bicubic", ResampleMode::kCubic},
      {"area", ResampleMode::kArea}};
  return {.size = a["size"].get<std::vector<int64_t>>(),
          .scale = a["scale"].get<std::vector<double>>(),
          .mode = kByName.at(a["mode"].get<std::string>()),
          .align_corners = a["align_corners"].get<bool>()};
}

}  // namespace

std::map<std::string, GoldenCaller> IndexingCallers() {
  const auto dim = [](const Json& a) { return a["dim"].get<int>(); };
  const auto index = [](const Json& a) { return a["index"].get<int64_t>(); };
  return {
      {"slice_range", One([=](const Operands& x, const Json& a) { return Slice(x[0], dim(a), RangeOf(a)); })},
      {"slice_scatter",
       One([=](const Operands& x, const Json& a) { return SliceScatter(x[0], x[1], dim(a), RangeOf(a)); })},
      {"slice_assign",
       One([](const Operands& x, const Json& a) { return SliceScatter(x[0], x[1], RangesOf(a)); })},
      {"select", One([=](const Operands& x, const Json& a) { return Select(x[0], dim(a), index(a)); })},
      {"select_scatter",
       One([=](const Operands& x, const Json& a) { return SelectScatter(x[0], x[1], dim(a), index(a)); })},
      {"cumprod", One([=](const Operands& x, const Json& a) { return CumProd(x[0], dim(a)); })},
      {"scatter_reduce", One([=](const Operands& x, const Json& a) {
         return ScatterReduce(x[0], dim(a), x[1], x[2], ReduceOptionsOf(a));
       })},
      {"masked_select", One([](const Operands& x, const Json&) { return MaskedSelect(x[0], x[1]); })},
      {"nonzero", One([](const Operands& x, const Json&) { return NonZero(x[0]); })},
      {"unique",
       [](const Operands& x, const Json&) {
         const UniqueElements unique = Unique(x[0]);
         return Outputs{unique.values, unique.inverse, unique.counts};
       }},
      {"interpolate",
       One([](const Operands& x, const Json& a) { return Interpolate(x[0], InterpolateOptionsOf(a)); })},
  };
}

}  // namespace weft
