#include "dtensor/inspect/explain.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "mesh/redistribution/price.h"
#include "mesh/shard_math.h"
#include "ops/sharding/propagate.h"

namespace weft {
namespace {

// "x w"; "x0 x1 x2" for any number of one kind.
std::vector<std::string> OperandNames(const OpDef& op, size_t count) {
  std::vector<std::string> names = absl::StrSplit(op.operands(), ' ', absl::SkipEmpty());
  if (!absl::EndsWith(op.operands(), "...")) return names;
  const std::string stem = names[0].substr(0, names[0].size() - 3);
  names.clear();
  for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat(stem, i));
  return names;
}

// "a, b".
std::string AxesText(const AxisList& axes, const DeviceMesh& mesh) {
  return absl::StrJoin(axes, ", ", [&](std::string* out, int axis) { out->append(mesh.axis_name(axis)); });
}

// Turns a trace into text and prices.
class Teller {
 public:
  Teller(Explanation& explanation, const PropagationTrace& trace, const CostModel& cost_model)
      : out_(explanation), trace_(trace), cost_model_(cost_model) {}

  void Tell() {
    out_.rule = trace_.call.rule.ToString();
    out_.decomposed_because = trace_.decomposed_because;
    const TracedCandidate* chosen = nullptr;
    for (const TracedCandidate& traced : trace_.candidates) {
      if (traced.fate == CandidateFate::kChosen) chosen = &traced;
    }
    for (const TracedCandidate& traced : trace_.candidates) out_.candidates.push_back(Tell(traced));
    for (size_t i = 0; i < trace_.candidates.size(); ++i) {
      out_.candidates[i].why = Why(trace_.candidates[i], out_.candidates[i], chosen);
    }
    for (const RefusedCandidate& refused : trace_.refused) {
      out_.refused.push_back(absl::StrCat(out_.mesh.axis_name(refused.axis), ": ",
                                          ChoiceText(refused.factor, refused.group), ": ", refused.why));
    }
  }

 private:
  std::string ChoiceText(int factor, int group) const {
    if (factor >= 0) return absl::StrCat("split ", trace_.call.rule.factors[factor].name);
    if (group < 0) return "neither";
    return absl::StrCat("Partial {",
                        absl::StrJoin(trace_.call.linear[group], " ",
                                      [&](std::string* out, int i) { out->append(out_.operand_names[i]); }),
                        "}");
  }

  // By what the search weighed, which estimates moves and plans none: said where the table's totals differ otherwise.
  std::string Why(const TracedCandidate& traced, const Explanation::Candidate& told,
                  const TracedCandidate* chosen) const {
    const auto more = [&] { return traced.total_us() - chosen->total_us(); };
    const auto estimated = [&] {
      const double told_more = told.total_us() - out_.chosen()->total_us();
      return std::abs(told_more - more()) < 0.05 ? "" : " as estimated";
    };
    switch (traced.fate) {
      case CandidateFate::kChosen:
        return "";
      case CandidateFate::kCostlier:
        return absl::StrFormat("%.1f us more%s", more(), estimated());
      case CandidateFate::kTie:
        return absl::StrCat("costs the same", estimated(), ", listed later");
      case CandidateFate::kPruned:
        return absl::StrCat("dropped at axis ",
                            out_.mesh.axis_name(static_cast<int>(traced.picks.size()) - 1),
                            ": the estimates of others are lower");
      case CandidateFate::kMovesInPlace:
        return "an operand that is updated in place would be nested anew";
    }
    return "";
  }

  Explanation::Candidate Tell(const TracedCandidate& traced) const {
    Explanation::Candidate candidate;
    for (const AxisCandidate& pick : traced.picks)
      candidate.choices.push_back(ChoiceText(pick.factor, pick.group));
    if (traced.operands.empty()) candidate.transfer_us = traced.transfer_us;
    for (size_t i = 0; i < traced.operands.size(); ++i) {
      RedistributionPrice price =
          PriceRedistribution(out_.layouts[i], traced.operands[i], out_.types[i], out_.mesh, cost_model_);
      candidate.transfer_us += price.microseconds;
      candidate.moves.push_back(
          {traced.operands[i], price.microseconds, price.num_bytes, std::move(price.steps)});
    }
    candidate.outputs = traced.outputs;
    candidate.compute_us = traced.compute_us;
    candidate.output_us = traced.output_us;
    candidate.chosen = traced.fate == CandidateFate::kChosen;
    return candidate;
  }

  Explanation& out_;
  const PropagationTrace& trace_;
  const CostModel& cost_model_;
};

// Walks a decomposition on types and layouts alone, explaining each of its calls.
class ExplainingEmitter final : public Emitter {
 public:
  ExplainingEmitter(Explanation& whole, const CostModel& cost_model, absl::Span<const void* const> values)
      : whole_(whole), cost_model_(cost_model), types_(whole.types), layouts_(whole.layouts) {
    for (size_t i = 0; i < types_.size(); ++i) {
      size_t first = values.empty() ? i : 0;
      while (first < i && values[first] != values[i]) ++first;
      firsts_.push_back(first);
    }
  }

  TensorType TypeOf(Value value) const override { return types_[value.id]; }
  const Layout& LayoutOf(Value value) const { return layouts_[value.id]; }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int /*like_operand*/) override {
    std::vector<TensorType> types;
    std::vector<Layout> layouts;
    std::vector<const void*> values;
    for (Value operand : operands) {
      types.push_back(types_[operand.id]);
      layouts.push_back(layouts_[operand.id]);
      values.push_back(&types_[firsts_[operand.id]]);
    }
    whole_.parts.push_back(ExplainErased(op, types, layouts, attributes, scalars, /*like=*/nullptr,
                                         whole_.mesh, cost_model_, values));
    return Hold(op.Infer(types, attributes), whole_.parts.back().outputs);
  }

  // Once a piece of `dim`: other operands go where operand 0 lies, and nothing else moves.
  Values EmitOnPiecesErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                            const void* /*scalars*/, int dim, PieceOutputs kind) override {
    const DeviceMesh& mesh = whole_.mesh;
    const Layout layout = layouts_[operands[0].id];
    const Shape whole = types_[operands[0].id].shape;
    Explanation part = {.op = op.name(), .mesh = mesh, .rule = absl::StrCat("on each piece of dim ", dim)};
    Explanation::Candidate candidate = {.chosen = true};
    candidate.choices.assign(mesh.num_axes(), "as it lies");
    const std::vector<int64_t> first_rank(mesh.num_axes(), 0);
    std::vector<TensorType> pieces;
    for (Value operand : operands) {
      const TensorType type = types_[operand.id];
      RedistributionPrice price = PriceRedistribution(layouts_[operand.id], layout, type, mesh, cost_model_);
      candidate.transfer_us += price.microseconds;
      candidate.moves.push_back({layout, price.microseconds, price.num_bytes, std::move(price.steps)});
      part.operand_names.push_back(absl::StrCat("x", part.operand_names.size()));
      part.types.push_back(type);
      part.layouts.push_back(layouts_[operand.id]);
      pieces.push_back({type.dtype, LocalBox(type.shape, layout, mesh, first_rank).shape});
    }
    int64_t num_pieces = 1;
    for (int axis : layout.ShardAxes(dim)) num_pieces *= mesh.axis_size(axis);
    TensorTypes types;
    for (const TensorType& piece : op.Infer(pieces, attributes)) {
      types.push_back({piece.dtype, whole});
      if (kind == PieceOutputs::kStatistic) types.back().shape[dim] = piece.shape[dim] * num_pieces;
    }
    part.outputs.assign(types.size(), layout);
    candidate.outputs = part.outputs;
    part.candidates.push_back(std::move(candidate));
    whole_.parts.push_back(std::move(part));
    return Hold(types, whole_.parts.back().outputs);
  }

 private:
  Values Hold(const TensorTypes& types, const std::vector<Layout>& layouts) {
    Values results;
    for (size_t i = 0; i < types.size(); ++i) {
      results.push_back({static_cast<int32_t>(types_.size())});
      firsts_.push_back(types_.size());
      types_.push_back(types[i]);
      layouts_.push_back(layouts[i]);
    }
    return results;
  }

  Explanation& whole_;
  const CostModel& cost_model_;
  // By value.
  std::vector<size_t> firsts_;  // the first that is the same tensor
  std::vector<TensorType> types_;
  std::vector<Layout> layouts_;
};

// A call moves an operand once that stands in it several times and is to lie alike there: leaves out the other moves.
void CountMovesOnce(absl::Span<const void* const> values, Explanation* explanation) {
  for (Explanation::Candidate& candidate : explanation->candidates) {
    for (size_t i = 0; i < std::min(values.size(), candidate.moves.size()); ++i) {
      for (size_t j = 0; j < i; ++j) {
        Explanation::Move& move = candidate.moves[i];
        if (values[j] != values[i] || candidate.moves[j].to != move.to) continue;
        candidate.transfer_us -= move.us;
        move = {.to = move.to};
        break;
      }
    }
  }
}

}  // namespace

int64_t Explanation::Candidate::num_bytes() const {
  int64_t total = 0;
  for (const Move& move : moves) total += move.num_bytes;
  return total;
}

const Explanation::Candidate* Explanation::chosen() const {
  for (const Candidate& candidate : candidates) {
    if (candidate.chosen) return &candidate;
  }
  return nullptr;
}

double Explanation::total_us() const {
  if (chosen() != nullptr) return chosen()->total_us();
  double total = 0;
  for (const Explanation& part : parts) total += part.total_us();
  return total;
}

int64_t Explanation::num_bytes() const {
  if (chosen() != nullptr) return chosen()->num_bytes();
  int64_t total = 0;
  for (const Explanation& part : parts) total += part.num_bytes();
  return total;
}

Explanation ExplainErased(const OpDef& op, absl::Span<const TensorType> types,
                          absl::Span<const Layout> layouts, const void* attributes, const void* scalars,
                          const Layout* like, const DeviceMesh& mesh, const CostModel& cost_model,
                          absl::Span<const void* const> values) {
  Explanation explanation;
  explanation.op = op.name();
  explanation.mesh = mesh;
  explanation.operand_names = OperandNames(op, types.size());
  explanation.types.assign(types.begin(), types.end());
  explanation.layouts.assign(layouts.begin(), layouts.end());
  WEFT_REQUIRE(explanation.operand_names.size() == types.size(), op.name(), ": expected ",
               explanation.operand_names.size(), " operands (", op.operands(), "), got ", types.size());
  const TensorTypes output_types = op.Infer(types, attributes);
  PropagationTrace trace;
  Propagate({.op = &op,
             .attributes = attributes,
             .operand_types = types,
             .operand_layouts = layouts,
             .output_types = output_types,
             .like = like},
            mesh, cost_model, &trace);
  Teller(explanation, trace, cost_model).Tell();
  CountMovesOnce(values, &explanation);
  if (explanation.decomposed_because.empty()) {
    explanation.outputs = explanation.chosen()->outputs;
    return explanation;
  }
  ExplainingEmitter emitter(explanation, cost_model, values);
  Values operands;
  for (size_t i = 0; i < types.size(); ++i) operands.push_back({static_cast<int32_t>(i)});
  for (Value value : op.Decompose(emitter, operands, attributes, scalars)) {
    explanation.outputs.push_back(emitter.LayoutOf(value));
  }
  return explanation;
}

void ExplainGuard::OnCall(const ErasedCall& call, const ResolvedCall& plan) {
  MeshContext& context = *call.operands[0]->context;
  std::vector<const void*> values;
  for (const DTensorRef& operand : call.operands) values.push_back(operand.impl());
  Explanation explanation =
      ExplainErased(call.op, plan.operand_types, plan.operand_layouts, plan.attributes.get(), call.scalars,
                    call.like, context.mesh(), context.cost_model(), values);
  explanation.path = context.state().PathName(context.state().path_id());
  explanations_->push_back(std::move(explanation));
}

void ExplainGuard::OnRearrange(absl::string_view name, absl::Span<const DTensor> sources,
                               const Rearrangement& rearrangement, const LoweredRearrangement& lowered) {
  MeshContext& context = *sources[0].context();
  const DeviceMesh& mesh = context.mesh();
  Explanation explanation = {.op = std::string(name), .mesh = mesh};
  explanation.path = context.state().PathName(context.state().path_id());
  explanation.rule = absl::StrCat("rows of dim ", rearrangement.dim, " to where they are to lie");
  Explanation::Candidate candidate = {.chosen = true};
  candidate.choices.assign(static_cast<size_t>(mesh.num_axes()), "as it lies");
  const double exchange_us = context.cost_model().Microseconds(lowered.worst);
  for (size_t i = 0; i < sources.size(); ++i) {
    const DTensor& source = sources[i];
    RedistributionPrice price =
        PriceRedistribution(source.layout(), rearrangement.layout, source.type(), mesh, context.cost_model());
    Explanation::Move move = {rearrangement.layout, price.microseconds, price.num_bytes,
                              std::move(price.steps)};
    move.num_bytes += lowered.num_bytes[i];
    if (i == 0) move.us += exchange_us;
    if (lowered.num_bytes[i] > 0) {
      absl::StrAppend(&move.steps, move.steps.empty() ? "" : ", ", "all_to_all(",
                      AxesText(lowered.axes, mesh), ")");
    }
    candidate.transfer_us += move.us;
    explanation.operand_names.push_back(absl::StrCat("x", i));
    explanation.types.push_back(source.type());
    explanation.layouts.push_back(source.layout());
    candidate.moves.push_back(std::move(move));
  }
  candidate.outputs = {rearrangement.layout};
  explanation.outputs = {rearrangement.layout};
  explanation.candidates.push_back(std::move(candidate));
  explanations_->push_back(std::move(explanation));
}

std::vector<Explanation> ExplainCalls(RankState& state, const std::function<void()>& body) {
  std::vector<Explanation> explanations;
  const ExplainGuard guard(state, &explanations);
  body();
  return explanations;
}

std::ostream& operator<<(std::ostream& out, const Explanation& explanation) {
  return out << explanation.ToString();
}

}  // namespace weft
