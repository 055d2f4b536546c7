#include "tools/rules/rule_check.h"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "mesh/redistribution/cost_model.h"
#include "ops/sharding/propagate.h"
#include "runtime/base/error.h"
#include "tools/rules/kernel_run.h"
#include "tools/rules/layout_strategy.h"
#include "tools/rules/op_case.h"
#include "tools/rules/public_call.h"

namespace weft {
namespace {

// How much is drawn of what cannot be walked in a test.
struct Effort {
  int64_t compositions;    // a case and mesh
  int64_t missing_tuples;  // a sample
  int propagated;          // random layouts a case and mesh
  int calls;               // the same
  int gradients;           // the same
  bool all_special;        // every special draw, not one
};
constexpr Effort kTestEffort = {.compositions = 8,
                                .missing_tuples = 400,
                                .propagated = 5,
                                .calls = 3,
                                .gradients = 1,
                                .all_special = false};
constexpr Effort kExhaustiveEffort = {.compositions = 100000,
                                      .missing_tuples = 20000,
                                      .propagated = 40,
                                      .calls = 12,
                                      .gradients = 6,
                                      .all_special = true};

// One op on its way through the checks.
class OpCheck {
 public:
  OpCheck(const OpDef& op, const RuleCheckOptions& options)
      : op_(op),
        effort_(options.exhaustive ? kExhaustiveEffort : kTestEffort),
        exhaustive_(options.exhaustive),
        device_(options.device),
        random_(options.seed) {
    report_.ops = 1;
  }

  RuleReport Run() {
    try {
      for (OpCase& c : OpCases(op_, exhaustive_, device_)) AddCase(std::move(c));
      WEFT_CHECK(!cases_.empty(), op_.name(), " has no samples, so nothing of it can be checked");
    } catch (const Error& error) {
      Wrong("declaration", /*op_case=*/nullptr, "", error.message());
      return std::move(report_);
    }
    for (size_t i = 0; i < cases_.size(); ++i) {
      for (const char* axis : {"a=2", "a=3", "a=4"}) CheckOneAxis(i, DeviceMesh::Parse(axis));
    }
    for (const char* text : {"a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"}) {
      const DeviceMesh mesh = DeviceMesh::Parse(text);
      for (size_t i = 0; i < cases_.size(); ++i) {
        CheckCompositions(i, mesh);
        CheckPropagated(i, mesh);
      }
      CheckCalls(mesh);
    }
    if (device_ == DeviceType::kCpu) FindMissingStrategies();  // the same on every device
    return std::move(report_);
  }

 private:
  void AddCase(OpCase c) {
    try {
      std::vector<CaseValues> values = ValuesOf(c, random_());
      values_.push_back(std::move(values));
      cases_.push_back(std::move(c));
    } catch (const Error&) {
      // Extents of the validator's own that the kernel refuses are no call.
      if (!c.varied) throw;
    }
  }

  void Wrong(const char* check, const OpCase* c, std::string strategy, std::string difference) {
    report_.wrong.push_back({.op = op_.name(),
                             .check = check,
                             .call = c == nullptr ? "" : c->ToString(),
                             .strategy = std::move(strategy),
                             .difference = std::move(difference)});
  }

  // Ordinary values in both forms of terms, and special ones.
  std::vector<KernelRun> RunsOf(size_t i, const LayoutStrategy& strategy) {
    std::vector<KernelRun> runs;
    std::vector<KernelRun> special;
    for (const CaseValues& values : values_[i]) {
      KernelRun run = {.strategy = &strategy, .values = &values, .seed = random_()};
      if (values.planted < 0) {
        run.form = runs.empty() ? TermForm::kScattered : TermForm::kKept;
        runs.push_back(run);
      } else {
        run.form = random_() % 2 == 0 ? TermForm::kScattered : TermForm::kKept;
        special.push_back(run);
      }
    }
    if (!effort_.all_special && special.size() > 1) {
      std::swap(special[0], special[random_() % special.size()]);
      special.resize(1);
    }
    runs.insert(runs.end(), special.begin(), special.end());
    return runs;
  }

  void Judge(const char* check, const OpCase& c, const DeviceMesh& mesh, const std::vector<KernelRun>& runs) {
    const std::vector<KernelResult> results = RunAlone(c, mesh, runs);
    const LayoutStrategy* blamed = nullptr;
    for (size_t run = 0; run < runs.size(); ++run) {
      ++report_.cases;
      const std::string difference = RunDifference(c, mesh, runs[run], results[run]);
      if (difference.empty() || runs[run].strategy == blamed) continue;
      blamed = runs[run].strategy;  // one finding a strategy
      Wrong(check, &c, absl::StrCat("on ", mesh.ToString(), ": ", blamed->ToString(mesh)),
            absl::StrCat(difference, " (", runs[run].values->name, " values)"));
    }
  }

  void JudgeStrategies(const char* check, size_t i, const DeviceMesh& mesh,
                       const std::vector<LayoutStrategy>& strategies) {
    constexpr size_t kRunsAtOnce = 4096;  // bounds the results that wait to be judged
    std::vector<KernelRun> runs;
    for (const LayoutStrategy& strategy : strategies) {
      const std::vector<KernelRun> more = RunsOf(i, strategy);
      runs.insert(runs.end(), more.begin(), more.end());
      if (runs.size() < kRunsAtOnce) continue;
      Judge(check, cases_[i], mesh, runs);
      runs.clear();
    }
    if (!runs.empty()) Judge(check, cases_[i], mesh, runs);
  }

  void CheckOneAxis(size_t i, const DeviceMesh& mesh) {
    JudgeStrategies("one axis", i, mesh, OfferedOnAxis(cases_[i]));
  }

  void CheckCompositions(size_t i, const DeviceMesh& mesh) {
    const Sampled<LayoutStrategy> drawn = Compositions(cases_[i], mesh, effort_.compositions, random_);
    report_.compositions += drawn.total;
    report_.compositions_tried += static_cast<int64_t>(drawn.taken.size());
    JudgeStrategies("composition", i, mesh, drawn.taken);
  }

  std::vector<Layout> RandomOperands(const OpCase& c, const DeviceMesh& mesh, bool partial) {
    std::vector<Layout> layouts;
    for (const TensorType& type : c.types) {
      layouts.push_back(RandomLayout(type.ndim(), mesh, partial && IsFloating(type.dtype), random_));
    }
    return layouts;
  }

  void CheckPropagated(size_t i, const DeviceMesh& mesh) {
    const OpCase& c = cases_[i];
    std::vector<LayoutStrategy> strategies;
    for (int round = 0; round < effort_.propagated; ++round) {
      const std::vector<Layout> operands = RandomOperands(c, mesh, /*partial=*/true);
      const Layout like = RandomLayout(c.output_types[0].ndim(), mesh, /*partial=*/true, random_);
      try {
        Strategy strategy = Propagate({.op = c.op,
                                       .attributes = c.sample.attributes.get(),
                                       .operand_types = c.types,
                                       .operand_layouts = operands,
                                       .output_types = c.output_types,
                                       .like = random_() % 2 == 0 ? &like : nullptr},
                                      mesh, CostModel(mesh));
        if (!strategy.decomposed)
          strategies.push_back({std::move(strategy.operands), std::move(strategy.outputs)});
      } catch (const Error& error) {
        if (*op_.in_place() == '\0') {
          Wrong("propagated", &c, mesh.ToString(), error.message());
        } else {
          ++report_.refused;
        }
      }
    }
    JudgeStrategies("propagated", i, mesh, strategies);
  }

  // Any draw, but for -0.0 in a Partial: its terms lose the sign.
  const CaseValues& ValuesForCall(size_t i, const std::vector<Layout>& operands) {
    const CaseValues& values = values_[i][random_() % values_[i].size()];
    return values.negative_zero && operands[values.planted].HasPartial() ? values_[i][0] : values;
  }

  void AddCalls(size_t i, const DeviceMesh& mesh, std::vector<PublicCall>& calls) {
    const OpCase& c = cases_[i];
    for (int round = 0; round < effort_.calls; ++round) {
      PublicCall call = {.op_case = &c, .form = random_() % 2 == 0 ? TermForm::kScattered : TermForm::kKept};
      call.operands = c.types.empty() ? std::vector<Layout>{RandomLayout(c.output_types[0].ndim(), mesh,
                                                                         /*partial=*/false, random_)}
                                      : RandomOperands(c, mesh, /*partial=*/true);
      call.values = &ValuesForCall(i, call.operands);
      calls.push_back(std::move(call));
    }
    std::vector<int> outputs;
    try {
      outputs = DifferentiableOutputs(c, values_[i][0]);
    } catch (const Error& error) {
      Wrong("gradient", &c, "on one rank", error.message());
    }
    for (int output : outputs) {
      for (int round = 0; round < effort_.gradients; ++round) {
        PublicCall call = {.op_case = &c, .values = &values_[i][0], .output = output};
        call.operands = RandomOperands(c, mesh, /*partial=*/false);
        call.seed_layout = RandomLayout(c.output_types[output].ndim(), mesh, /*partial=*/true, random_);
        calls.push_back(std::move(call));
      }
    }
  }

  void CheckCalls(const DeviceMesh& mesh) {
    std::vector<PublicCall> calls;
    for (size_t i = 0; i < cases_.size(); ++i) AddCalls(i, mesh, calls);
    const std::vector<CallResult> results = RunPublicCalls(mesh, calls);
    for (size_t i = 0; i < calls.size(); ++i) {
      ++report_.cases;
      if (results[i].outcome == CallOutcome::kRefused) ++report_.refused;
      if (results[i].outcome != CallOutcome::kWrong) continue;
      Wrong(calls[i].output.has_value() ? "gradient" : "call", calls[i].op_case,
            absl::StrCat("on ", mesh.ToString(), ": ", calls[i].ToString(mesh)),
            absl::StrCat(results[i].difference, " (", calls[i].values->name, " values)"));
    }
  }

  void FindMissingStrategies() {
    MissingCounts counts;
    const std::vector<OpCase> cases(cases_.begin(), cases_.end());
    report_.missing = FindMissing(cases, effort_.missing_tuples, random_, counts);
    report_.missing_tuples = counts.tuples;
    report_.missing_tried = counts.tried;
    report_.cases += counts.runs;
  }

  const OpDef& op_;
  const Effort effort_;
  const bool exhaustive_;
  const DeviceType device_;
  std::mt19937_64 random_;
  std::deque<OpCase> cases_;  // calls point into both
  std::deque<std::vector<CaseValues>> values_;
  RuleReport report_;
};

}  // namespace

std::string WrongStrategy::ToString() const {
  return absl::StrCat("wrong (", check, "): ", call.empty() ? op : call, strategy.empty() ? "" : ", ",
                      strategy, ": ", difference);
}

void RuleReport::Add(const RuleReport& other) {
  ops += other.ops;
  cases += other.cases;
  refused += other.refused;
  wrong.insert(wrong.end(), other.wrong.begin(), other.wrong.end());
  missing.insert(missing.end(), other.missing.begin(), other.missing.end());
  missing_tuples += other.missing_tuples;
  missing_tried += other.missing_tried;
  compositions += other.compositions;
  compositions_tried += other.compositions_tried;
}

RuleReport CheckOp(const OpDef& op, const RuleCheckOptions& options) { return OpCheck(op, options).Run(); }

}  // namespace weft
