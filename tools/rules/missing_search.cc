#include "tools/rules/missing_search.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/rules/deliberate.h"
#include "tools/rules/kernel_run.h"
#include "tools/rules/layout_strategy.h"

namespace weft {
namespace {

const DeviceMesh& AxisOf(int num_ranks) {
  static const std::vector<DeviceMesh>* const meshes = new std::vector<DeviceMesh>{
      DeviceMesh::Parse("a=1"), DeviceMesh::Parse("a=2"), DeviceMesh::Parse("a=3"), DeviceMesh::Parse("a=4")};
  return (*meshes)[num_ranks - 1];
}

// One dim of one value: operands first, then outputs.
struct ValueDim {
  size_t value = 0;
  int dim = 0;
};

// Dims that are split together: those of a factor, or one dim that the rule writes as "1".
struct Unit {
  std::vector<ValueDim> dims;
  bool guarded = false;  // whole, or "1": split only where inference vouches for the kernel
};

std::vector<Unit> UnitsOf(const OpCase& c) {
  std::vector<std::vector<int>> values = c.call.rule.operands;
  values.insert(values.end(), c.call.rule.outputs.begin(), c.call.rule.outputs.end());
  std::vector<Unit> units(c.call.rule.factors.size());
  for (size_t f = 0; f < units.size(); ++f) units[f].guarded = c.call.rule.factors[f].whole;
  for (size_t value = 0; value < values.size(); ++value) {
    for (size_t dim = 0; dim < values[value].size(); ++dim) {
      const ValueDim here = {value, static_cast<int>(dim)};
      if (values[value][dim] >= 0) {
        units[values[value][dim]].dims.push_back(here);
      } else {
        units.push_back({{here}, /*guarded=*/true});
      }
    }
  }
  return units;
}

// Sets of units in which no value is split twice, the empty one first.
std::vector<std::vector<int>> SplitSets(const std::vector<Unit>& units, size_t num_values) {
  std::vector<std::vector<int>> sets;
  std::vector<int> chosen;
  std::vector<bool> taken(num_values, false);
  const auto extend = [&](auto&& self, size_t unit) -> void {
    if (unit == units.size()) {
      sets.push_back(chosen);
      return;
    }
    self(self, unit + 1);
    const std::vector<ValueDim>& dims = units[unit].dims;
    if (absl::c_any_of(dims, [&](const ValueDim& at) { return taken[at.value]; })) return;
    for (const ValueDim& at : dims) taken[at.value] = true;
    chosen.push_back(static_cast<int>(unit));
    self(self, unit + 1);
    chosen.pop_back();
    for (const ValueDim& at : dims) taken[at.value] = false;
  };
  extend(extend, 0);
  return sets;
}

bool HasIntegers(const OpCase& c) {
  return absl::c_any_of(c.types, [](const TensorType& type) { return !IsFloating(type.dtype); });
}

TensorTypes LocalTypes(absl::Span<const TensorType> types, const std::vector<Layout>& layouts,
                       const DeviceMesh& mesh, int64_t rank) {
  TensorTypes local;
  for (size_t i = 0; i < types.size(); ++i) {
    local.push_back({types[i].dtype, LocalBox(types[i].shape, layouts[i], mesh, {rank}).shape});
  }
  return local;
}

// Whether inference takes every rank's pieces for whole operands of the pieces of the outputs.
bool InferenceVouches(const OpCase& c, const LayoutStrategy& strategy, const DeviceMesh& mesh) {
  if (HasIntegers(c)) return false;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    try {
      const TensorTypes outputs =
          c.op->Infer(LocalTypes(c.types, strategy.operands, mesh, rank), c.sample.attributes.get());
      if (outputs != LocalTypes(c.output_types, strategy.outputs, mesh, rank)) return false;
    } catch (const Error&) {
      return false;
    }
  }
  return true;
}

// A tuple on trial: outputs are Shard, or still open, in which case the kernel computes them whole.
struct Candidate {
  LayoutStrategy strategy;  // open outputs replicated
  bool guarded = false;
  std::vector<std::vector<Layout>> matches = {};  // per output, the layouts that have fitted so far

  bool Alive() const {
    return absl::c_none_of(matches, [](const auto& layouts) { return layouts.empty(); });
  }
};

std::vector<Layout> OutputLayouts(const Layout& computed) {
  std::vector<Layout> layouts = {computed};
  if (computed.IsShard(0)) return layouts;
  for (ReduceOp op : kAllReduceOps) layouts.push_back(computed.WithPartial(0, op));
  return layouts;
}

// The tuples of one set of split units: every way of the other operands to be replicated or Partial.
class Enumeration {
 public:
  Enumeration(const OpCase& c, const std::vector<Unit>& units, const std::vector<int>& split) : c_(c) {
    for (const TensorType& type : c.types) base_.operands.push_back(Layout(type.ndim(), 1));
    for (const TensorType& type : c.output_types) base_.outputs.push_back(Layout(type.ndim(), 1));
    for (int unit : split) {
      guarded_ = guarded_ || units[unit].guarded;
      for (const ValueDim& at : units[unit].dims) {
        Layout& layout =
            at.value < c.types.size() ? base_.operands[at.value] : base_.outputs[at.value - c.types.size()];
        layout = layout.WithShard(0, at.dim);
      }
    }
    for (size_t i = 0; i < c.types.size(); ++i) {
      if (IsFloating(c.types[i].dtype) && base_.operands[i].IsReplicate(0))
        free_.push_back(static_cast<int>(i));
    }
  }

  int64_t size() const {
    int64_t size = 1;
    for (size_t i = 0; i < free_.size(); ++i) size *= kChoices;
    return size;
  }
  bool guarded() const { return guarded_; }
  const LayoutStrategy& base() const { return base_; }

  Candidate At(int64_t number) const {
    Candidate candidate = {.strategy = base_, .guarded = guarded_};
    for (int operand : free_) {
      const int64_t choice = number % kChoices;
      number /= kChoices;
      Layout& layout = candidate.strategy.operands[operand];
      if (choice > 0) layout = layout.WithPartial(0, kAllReduceOps[choice - 1]);
    }
    for (const Layout& layout : base_.outputs) candidate.matches.push_back(OutputLayouts(layout));
    return candidate;
  }

 private:
  static constexpr int64_t kChoices = 6;

  const OpCase& c_;
  LayoutStrategy base_;
  bool guarded_ = false;
  std::vector<int> free_;
};

bool SplitsDecomposed(const OpCase& c, const LayoutStrategy& strategy) {
  if (!c.op->has_decomposition()) return false;
  for (size_t i = 0; i < strategy.operands.size(); ++i) {
    if (!strategy.operands[i].IsShard(0)) continue;
    const int factor = c.call.rule.operands[i][strategy.operands[i].shard_dim(0)];
    if (factor >= 0 && c.call.rule.factors[factor].whole) return true;
  }
  return false;
}

// At most `limit` of the tuples, each split evenly represented.
std::vector<Candidate> Draw(const OpCase& c, int64_t limit, std::mt19937_64& random, MissingCounts& counts) {
  const std::vector<Unit> units = UnitsOf(c);
  std::vector<Enumeration> enumerations;
  for (const std::vector<int>& split : SplitSets(units, c.types.size() + c.output_types.size())) {
    Enumeration tuples(c, units, split);
    if (SplitsDecomposed(c, tuples.base())) continue;
    if (tuples.guarded() && !c.op->is_view() && !InferenceVouches(c, tuples.base(), AxisOf(2))) continue;
    counts.tuples += tuples.size();
    enumerations.push_back(std::move(tuples));
  }
  std::vector<Candidate> candidates;
  int64_t left = limit;
  for (size_t i = 0; i < enumerations.size(); ++i) {
    const int64_t share = left / static_cast<int64_t>(enumerations.size() - i);
    std::set<int64_t> numbers;
    if (enumerations[i].size() <= share) {
      for (int64_t number = 0; number < enumerations[i].size(); ++number) numbers.insert(number);
    } else {
      while (static_cast<int64_t>(numbers.size()) < share)
        numbers.insert(static_cast<int64_t>(random() % enumerations[i].size()));
    }
    left -= static_cast<int64_t>(numbers.size());
    for (int64_t number : numbers) candidates.push_back(enumerations[i].At(number));
  }
  counts.tried += static_cast<int64_t>(candidates.size());
  return candidates;
}

// Runs every candidate that lives on one set of values, and strikes out what does not fit.
void Try(const OpCase& c, int num_ranks, const std::vector<CaseValues>& values, size_t draw, TermForm form,
         std::vector<Candidate>& candidates, MissingCounts& counts) {
  const DeviceMesh& mesh = AxisOf(num_ranks);
  std::vector<KernelRun> runs;
  std::vector<Candidate*> tried;
  for (Candidate& candidate : candidates) {
    if (candidate.guarded && !c.op->is_view() && !InferenceVouches(c, candidate.strategy, mesh)) continue;
    runs.push_back({.strategy = &candidate.strategy, .values = &values[draw], .form = form, .seed = draw});
    tried.push_back(&candidate);
  }
  const std::vector<KernelResult> results = RunAlone(c, mesh, runs);
  counts.runs += static_cast<int64_t>(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t output = 0; output < c.output_types.size(); ++output) {
      std::vector<Layout>& layouts = tried[i]->matches[output];
      layouts.erase(
          std::remove_if(layouts.begin(), layouts.end(),
                         [&](const Layout& layout) {
                           return !results[i].error.empty() ||
                                  !OutputDifference(c, mesh, runs[i], results[i], output, layout).empty();
                         }),
          layouts.end());
    }
  }
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [](const Candidate& candidate) { return !candidate.Alive(); }),
                   candidates.end());
}

void TryAll(const OpCase& c, std::vector<Candidate>& candidates, MissingCounts& counts) {
  if (candidates.empty()) return;
  const std::vector<CaseValues> values = ValuesOf(c, /*seed=*/11);
  Try(c, 2, values, 0, TermForm::kScattered, candidates, counts);
  for (int num_ranks : {3, 4, 2}) {
    for (size_t draw = 0; draw < values.size(); ++draw) {
      if (candidates.empty()) return;
      // Kept terms are what a replicated operand becomes, so they are promised too.
      Try(c, num_ranks, values, draw, draw % 2 == 1 ? TermForm::kKept : TermForm::kScattered, candidates,
          counts);
    }
  }
}

bool KeepsInPlace(const OpCase& c, const LayoutStrategy& strategy) {
  for (size_t i = 0; i < c.call.in_place.size(); ++i) {
    if (strategy.outputs[i] != strategy.operands[c.call.in_place[i]]) return false;
  }
  return true;
}

// What is left of a candidate and not offered: replicated outputs as such, each other way once.
std::vector<LayoutStrategy> Survivors(const OpCase& c, const Candidate& candidate) {
  std::vector<LayoutStrategy> strategies = {{candidate.strategy.operands, {}}};
  for (const std::vector<Layout>& matches : candidate.matches) {
    std::vector<LayoutStrategy> longer;
    for (const LayoutStrategy& strategy : strategies) {
      for (const Layout& layout : matches) {
        longer.push_back(strategy);
        longer.back().outputs.push_back(layout);
        if (!layout.HasPartial()) break;
      }
    }
    strategies = std::move(longer);
  }
  const std::vector<std::vector<Layout>> offered = OfferedOutputs(c, candidate.strategy.operands);
  strategies.erase(std::remove_if(strategies.begin(), strategies.end(),
                                  [&](const LayoutStrategy& strategy) {
                                    return absl::c_linear_search(offered, strategy.outputs) ||
                                           !KeepsInPlace(c, strategy);
                                  }),
                   strategies.end());
  return strategies;
}

// A case in which no degenerate extent can make things equal that are not; none if the sample has no other.
bool IsGeneric(const OpCase& c) {
  for (const Factor& factor : c.call.rule.factors) {
    if (factor.size < 2) return false;
  }
  return absl::c_all_of(c.output_types, [](const TensorType& type) { return type.shape.num_elements() > 0; });
}

}  // namespace

std::vector<MissingStrategy> FindMissing(const std::vector<OpCase>& cases, int64_t limit,
                                         std::mt19937_64& random, MissingCounts& counts) {
  std::vector<const OpCase*> searched;
  std::map<std::string, int> samples_tried;                              // by rule
  std::map<std::pair<std::string, std::string>, MissingStrategy> found;  // by rule and strategy
  for (const OpCase& c : cases) {
    if (!IsGeneric(c)) continue;
    const bool known = absl::c_any_of(searched, [&](const OpCase* other) {
      return other->rule == c.rule &&
             c.op->EqualAttributes(other->sample.attributes.get(), c.sample.attributes.get());
    });
    if (known) continue;
    searched.push_back(&c);
    ++samples_tried[c.rule];
    std::vector<Candidate> candidates = Draw(c, limit, random, counts);
    for (const OpCase& like : cases) {
      const bool same = like.rule == c.rule && IsGeneric(like) &&
                        like.op->EqualAttributes(like.sample.attributes.get(), c.sample.attributes.get());
      if (same) TryAll(like, candidates, counts);
    }
    for (const Candidate& candidate : candidates) {
      for (const LayoutStrategy& strategy : Survivors(c, candidate)) {
        const std::string text = strategy.ToString(AxisOf(2));
        MissingStrategy& missing = found[{c.rule, text}];
        ++missing.samples;
        if (missing.samples > 1) continue;
        missing.op = c.op->name();
        missing.rule = c.rule;
        missing.strategy = text;
        missing.reason = DeliberateReason(c.op->name(), c.rule, text);
      }
    }
  }
  std::vector<MissingStrategy> missing;
  for (auto& [key, strategy] : found) {
    strategy.samples_tried = samples_tried[key.first];
    missing.push_back(std::move(strategy));
  }
  return missing;
}

}  // namespace weft
