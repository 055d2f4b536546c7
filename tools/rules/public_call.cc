#include "tools/rules/public_call.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dispatch.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

// A rank that fails leaves the others waiting at most this long, if they wait for it at all.
constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(20);

using Context = IntrusivePtr<MeshContext>;

bool Refuses(const OpDef& op, const Error& error) {
  return *op.in_place() != '\0' && error.code() == absl::StatusCode::kInvalidArgument;
}

DTensor LaidTensor(const Context& context, const Tensor& value, const Layout& layout, TermForm form,
                   uint64_t seed) {
  const Piece piece = LaidPiece(value, layout, context->mesh(), context->coordinate(), form, seed);
  const bool on_cpu = context->allocator()->device().type == DeviceType::kCpu;
  return DTensor::FromLocal(context, on_cpu ? piece.tensor : CloneTensor(piece.tensor, context->allocator()),
                            layout, value.shape());
}

struct Outcome {
  std::vector<Tensor> outputs;
  std::vector<Tensor> gradients;  // by operand; undefined where there is none
};

// The gradient that arrives at `output`: the same on every mesh.
Tensor SeedValue(const OpCase& c, int output) {
  std::mt19937_64 random(5);
  return RandomTensor({c.output_types[output], -1, 1}, random);
}

Outcome RunCall(const Context& context, const PublicCall& call) {
  const OpCase& c = *call.op_case;
  const void* attributes = c.sample.attributes.get();
  const void* scalars = c.sample.scalars.get();
  Outcome outcome;
  if (c.types.empty()) {
    outcome.outputs.push_back(
        OnHost(ExecuteCreation({*c.op, {}, attributes, scalars}, context, call.operands[0]).FullTensor()));
    return outcome;
  }
  DTensors operands;
  for (size_t i = 0; i < c.types.size(); ++i) {
    operands.push_back(LaidTensor(context, call.values->operands[i], call.operands[i], call.form, i));
    if (call.output.has_value() && IsFloating(c.types[i].dtype)) operands[i] = operands[i].RequiresGrad();
  }
  const DTensorRefs borrowed = Borrow(operands);
  const DTensors outputs = CallErased({*c.op, borrowed, attributes, scalars});
  for (const DTensor& output : outputs) outcome.outputs.push_back(OnHost(output.FullTensor()));
  if (!call.output.has_value()) return outcome;
  Backward(outputs[*call.output], LaidTensor(context, SeedValue(c, *call.output), call.seed_layout,
                                             TermForm::kScattered, /*seed=*/99));
  for (const DTensor& operand : operands) {
    const bool has_gradient = operand.requires_grad() && operand.grad().defined();
    outcome.gradients.push_back(has_gradient ? OnHost(operand.grad().FullTensor()) : Tensor());
  }
  return outcome;
}

// The same call on one rank.
Outcome RunOnOneRank(const PublicCall& call) {
  PublicCall whole = call;
  for (Layout& layout : whole.operands) layout = Layout(layout.ndim(), 0);
  whole.seed_layout = Layout(call.seed_layout.ndim(), 0);
  Outcome outcome;
  RunRanks(1, [&](World& world) { outcome = RunCall(Bind(world, DeviceMesh()), whole); },
           {.device = call.op_case->device, .threads_per_rank = 1});
  return outcome;
}

std::string Compare(const PublicCall& call, const Outcome& outcome, const Outcome& one_rank,
                    int64_t num_ranks) {
  // Between operands and result values may go through the coarsest of their dtypes. Redistribution may reduce
  // some Partials and pass others, whose terms an infinity then meets (see OutputDifference).
  double rounding = 0;
  for (const TensorTypes& types : {call.op_case->types, call.op_case->output_types}) {
    for (const TensorType& type : types)
      rounding = std::max(rounding, Tolerance(type.dtype) * static_cast<double>(num_ranks));
  }
  const auto closeness = [&](const Tensor& tensor) {
    const bool exact = call.op_case->types.empty() || !IsFloating(tensor.dtype());
    return Closeness{.tolerance = exact ? 0 : rounding, .may_cancel = call.values->planted >= 0};
  };
  for (size_t i = 0; i < outcome.outputs.size(); ++i) {
    const Tensor& expected = call.values->outputs[i];
    const std::string difference = Difference(outcome.outputs[i], expected, closeness(expected));
    if (!difference.empty()) return absl::StrCat("output ", i, ": ", difference);
  }
  for (size_t i = 0; i < outcome.gradients.size(); ++i) {
    const Tensor& expected = one_rank.gradients[i];
    if (!expected.defined() && !outcome.gradients[i].defined()) continue;
    if (!expected.defined() || !outcome.gradients[i].defined())
      return absl::StrCat("operand ", i, " has a gradient on ", expected.defined() ? "one rank" : "the mesh",
                          " alone");
    // A backward pass is several ops, each of which rounds.
    Closeness close = closeness(expected);
    close.tolerance *= 10;
    const std::string difference = Difference(outcome.gradients[i], expected, close);
    if (!difference.empty()) return absl::StrCat("gradient of operand ", i, ": ", difference);
  }
  return "";
}

// Calls from `begin` on, up to the first that fails on some rank; returns the number of the next one.
size_t RunUntilFailure(const DeviceMesh& mesh, absl::Span<const PublicCall> calls,
                       const std::vector<Outcome>& one_rank, size_t begin, std::vector<CallResult>& results) {
  std::mutex mutex;
  size_t failed = calls.size();
  const auto record = [&](size_t i, CallOutcome outcome, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (outcome == CallOutcome::kWrong && i < failed) failed = i;
    if (results[i].difference.empty()) results[i] = {outcome, text};
  };
  const auto body = [&](World& world) {
    const Context context = Bind(world, mesh);
    for (size_t i = begin; i < calls.size(); ++i) {
      try {
        const Outcome outcome = RunCall(context, calls[i]);
        const std::string difference = Compare(calls[i], outcome, one_rank[i], mesh.num_ranks());
        const std::lock_guard<std::mutex> lock(mutex);
        if (!difference.empty() && results[i].difference.empty())
          results[i] = {CallOutcome::kWrong, difference};
      } catch (const Error& error) {
        const bool refused = Refuses(*calls[i].op_case->op, error);
        record(i, refused ? CallOutcome::kRefused : CallOutcome::kWrong, error.message());
        if (!refused) throw;
      }
    }
  };
  try {
    RunRanks(static_cast<int>(mesh.num_ranks()), body,
             {.device = calls[begin].op_case->device, .threads_per_rank = 1, .comm_timeout = kTimeout});
  } catch (const std::exception& error) {
    if (failed == calls.size()) throw;
    return failed + 1;
  }
  return calls.size();
}

}  // namespace

std::string PublicCall::ToString(const DeviceMesh& mesh) const {
  std::string text = absl::StrCat(output.has_value() ? "gradient of the call" : "call");
  for (const Layout& layout : operands) absl::StrAppend(&text, " ", layout.ToString(mesh));
  if (output.has_value())
    absl::StrAppend(&text, ", output ", *output, " with a seed ", seed_layout.ToString(mesh));
  return text;
}

Layout RandomLayout(int ndim, const DeviceMesh& mesh, bool partial, std::mt19937_64& random) {
  std::vector<int> axes(mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) axes[axis] = axis;
  absl::c_shuffle(axes, random);
  const bool other_kind = random() % 4 == 0;
  const ReduceOp kind = other_kind ? kAllReduceOps[random() % std::size(kAllReduceOps)] : ReduceOp::kSum;
  Layout layout(ndim, mesh.num_axes());
  for (int axis : axes) {
    const uint64_t choice = random() % 4;
    if (choice <= 1 && ndim > 0) {
      layout = layout.WithShard(axis, static_cast<int>(random() % static_cast<uint64_t>(ndim)));
    } else if (choice == 2 && partial) {
      layout = layout.WithPartial(axis, kind);
    }
  }
  return layout;
}

std::vector<CallResult> RunPublicCalls(const DeviceMesh& mesh, absl::Span<const PublicCall> calls) {
  std::vector<Outcome> one_rank;
  for (const PublicCall& call : calls)
    one_rank.push_back(call.output.has_value() ? RunOnOneRank(call) : Outcome());
  std::vector<CallResult> results(calls.size());
  for (size_t begin = 0; begin < calls.size();)
    begin = RunUntilFailure(mesh, calls, one_rank, begin, results);
  return results;
}

std::vector<int> DifferentiableOutputs(const OpCase& c, const CaseValues& values) {
  const bool floating =
      absl::c_any_of(c.types, [](const TensorType& type) { return IsFloating(type.dtype); });
  if (!c.op->has_backward() || !floating) return {};
  PublicCall call = {.op_case = &c, .values = &values};
  for (const TensorType& type : c.types) call.operands.push_back(Layout(type.ndim(), 0));
  std::vector<int> outputs;
  for (size_t i = 0; i < c.output_types.size(); ++i) {
    if (!IsFloating(c.output_types[i].dtype)) continue;
    call.output = static_cast<int>(i);
    call.seed_layout = Layout(c.output_types[i].ndim(), 0);
    try {
      RunOnOneRank(call);
      outputs.push_back(*call.output);
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kUnimplemented) throw;
    }
  }
  return outputs;
}

}  // namespace weft
