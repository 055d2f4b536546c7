#include "dtensor/nn/summary.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/nn/module_type.h"
#include "mesh/shard_math.h"
#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/attention/packed_attention.h"
#include "ops/convolution/conv.h"
#include "ops/product/contract.h"

namespace weft {
namespace {

double Elements(const TensorType& type) { return static_cast<double>(type.shape.num_elements()); }

// [b, s, ..., e] x [b, t, ..., e] and back: two products for each pair of a query and a key; half of the pairs if causal.
double AttentionFlops(const std::vector<TensorType>& operands, bool causal) {
  const double pairs = Elements(operands[0]) * static_cast<double>(operands[1].shape[1]);
  return (causal ? 2 : 4) * pairs;
}

double FlopsOf(const ErasedCall& call, const ResolvedCall& plan) {
  const std::vector<TensorType>& operands = plan.operand_types;
  if (&call.op == &kContract || &call.op == &kLinear || &call.op == &kGeluLinear) {
    const auto& a = *static_cast<const ContractAttributes*>(call.attributes);
    double products = 2 * Elements(plan.output_types[0]);
    for (int dim = 0; dim < operands[0].ndim(); ++dim) {
      if (!a.y.Has(a.x[dim])) products *= static_cast<double>(operands[0].shape[dim]);
    }
    return products;
  }
  if (&call.op == &kConv) {
    // [o, c / groups, kh, kw]: what an output sums.
    const TensorType& w = operands[1];
    return 2 * Elements(plan.output_types[0]) * Elements(w) / static_cast<double>(w.shape[0]);
  }
  if (&call.op == &kAttention || &call.op == &kMaskedAttention) {
    return AttentionFlops(operands, static_cast<const AttentionAttributes*>(call.attributes)->causal);
  }
  if (&call.op == &kPackedAttention) {
    // q, k and v side by side: [b, s, 3, h, e]
    const double queries = Elements(operands[0]) / 3 * static_cast<double>(operands[0].shape[1]);
    return (static_cast<const AttentionAttributes*>(call.attributes)->causal ? 2 : 4) * queries;
  }
  return 0;
}

// Adds up by module path.
class FlopCounter final : public CallObserver {
 public:
  explicit FlopCounter(const RankState& state) : state_(state) {}
  void OnCall(const ErasedCall& call, const ResolvedCall& plan) override {
    flops[state_.PathName(state_.path_id())] += FlopsOf(call, plan);
  }
  std::map<std::string, double> flops;

 private:
  const RankState& state_;
};

SummaryTensor OfValue(const std::string& name, const Shape& shape, bool is_here, const DTensor* value) {
  SummaryTensor tensor = {.name = name, .shape = shape};
  if (!is_here || value == nullptr) return tensor;
  const DeviceMesh& mesh = value->context()->mesh();
  tensor.dtype = std::string(DTypeName(value->dtype()));
  tensor.layout = value->layout().ToString(mesh);
  tensor.bytes_per_rank = MaxLocalElements(shape, value->layout(), mesh) * ItemSize(value->dtype());
  return tensor;
}

SummaryModule OfModule(const Module& module) {
  SummaryModule summary = {.path = module.path(), .type = ModuleTypeName(module)};
  for (const Parameter* parameter : module.parameters()) {
    summary.tensors.push_back(OfValue(parameter->name(), parameter->spec().shape, parameter->is_here(),
                                      parameter->materialized() ? &parameter->at_rest() : nullptr));
    summary.tensors.back().trainable = parameter->trainable();
  }
  for (const ModuleBuffer* buffer : module.buffers()) {
    summary.tensors.push_back(OfValue(buffer->name(), buffer->spec().shape, buffer->is_here(),
                                      buffer->materialized() ? &buffer->Value() : nullptr));
    summary.tensors.back().is_parameter = false;
    summary.tensors.back().trainable = false;
  }
  return summary;
}

// "1,234,567".
std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, 1, ',');
  return digits;
}

std::string FlopsText(double flops) {
  if (flops == 0) return "";
  for (const auto& [unit, name] : {std::pair(1e12, "T"), std::pair(1e9, "G"), std::pair(1e6, "M")}) {
    if (flops >= unit) return absl::StrFormat("%.3g %s", flops / unit, name);
  }
  return absl::StrFormat("%.0f", flops);
}

using Row = std::vector<std::string>;

// Numbers stand to the right: columns from `first_number` on.
std::string Aligned(const std::vector<Row>& rows, size_t first_number) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const int width = static_cast<int>(widths[i]);
      line += i < first_number ? absl::StrFormat("%-*s  ", width, row[i])
                               : absl::StrFormat("%*s  ", width, row[i]);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

template <class Wanted>
int64_t CountElements(const ModelSummary& summary, Wanted wanted) {
  int64_t count = 0;
  for (const SummaryModule& module : summary.modules) {
    for (const SummaryTensor& tensor : module.tensors) {
      if (wanted(tensor)) count += tensor.shape.num_elements();
    }
  }
  return count;
}

}  // namespace

int64_t ModelSummary::num_parameters() const {
  return CountElements(*this, [](const SummaryTensor& tensor) { return tensor.is_parameter; });
}

int64_t ModelSummary::num_trainable() const {
  return CountElements(*this, [](const SummaryTensor& tensor) { return tensor.trainable; });
}

int64_t ModelSummary::num_buffer_elements() const {
  return CountElements(*this, [](const SummaryTensor& tensor) { return !tensor.is_parameter; });
}

int64_t ModelSummary::bytes_per_rank() const {
  int64_t bytes = 0;
  for (const SummaryModule& module : modules) {
    for (const SummaryTensor& tensor : module.tensors) bytes += tensor.bytes_per_rank;
  }
  return bytes;
}

double ModelSummary::flops() const {
  double flops = 0;
  for (const SummaryModule& module : modules) flops += module.flops;
  return flops;
}

std::string ModelSummary::ToTable() const {
  std::vector<Row> rows = {{"module", "type", "shape", "layout", "elements", "bytes per rank", "flops"}};
  for (const SummaryModule& module : modules) {
    rows.push_back({module.path.empty() ? "(model)" : module.path, module.type, "", "", "", "",
                    FlopsText(module.flops)});
    for (const SummaryTensor& tensor : module.tensors) {
      const std::string kind = !tensor.is_parameter ? "buffer" : tensor.trainable ? "" : "frozen";
      rows.push_back({absl::StrCat("  ", tensor.name), kind,
                      absl::StrCat(tensor.dtype, tensor.shape.ToString()), tensor.layout,
                      Grouped(tensor.shape.num_elements()),
                      tensor.layout.empty() ? "" : Grouped(tensor.bytes_per_rank), ""});
    }
  }
  std::string text = Aligned(rows, /*first_number=*/4);
  absl::StrAppend(&text, Grouped(num_parameters()), " parameters, ", Grouped(num_trainable()), " trained; ",
                  Grouped(num_buffer_elements()), " elements of buffers");
  if (bytes_per_rank() > 0)
    absl::StrAppend(&text, "; ", Grouped(bytes_per_rank()), " bytes per rank at rest");
  if (flops() > 0) absl::StrAppend(&text, "; ", FlopsText(flops()), " flops per forward");
  return absl::StrCat(text, "\n");
}

ModelSummary Summarize(Module& model, const std::function<void()>& forward) {
  ModelSummary summary;
  std::map<std::string, double> flops;
  if (forward != nullptr) {
    RankState& state = model.context()->state();
    const NoGradGuard no_grad(state);
    const EvaluationGuard evaluation(state);
    FlopCounter counter(state);
    const CallObserverGuard guard(state, &counter);
    forward();
    flops = std::move(counter.flops);
  }
  for (const Module* module : model.AllModules()) {
    summary.modules.push_back(OfModule(*module));
    if (const auto found = flops.find(module->full_path()); found != flops.end()) {
      summary.modules.back().flops = found->second;
    }
  }
  return summary;
}

}  // namespace weft
