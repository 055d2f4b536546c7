#include "parallel/pipeline/segment_costs.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module_type.h"
#include "parallel/style.h"
#include "runtime/base/number_text.h"

namespace weft {
namespace {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Takes from slots what they have while it lives, then gives it back and lets go what they had meanwhile.
class EmptySlots {
 public:
  EmptySlots(std::vector<Parameter*> parameters, std::vector<ModuleBuffer*> buffers)
      : parameters_(std::move(parameters)), buffers_(std::move(buffers)) {
    placed_.reserve(parameters_.size());
    values_.reserve(buffers_.size());
    for (Parameter* parameter : parameters_) placed_.push_back(parameter->ExchangePlaced({}));
    for (ModuleBuffer* buffer : buffers_) values_.push_back(buffer->ExchangeValue(DTensor()));
  }
  ~EmptySlots() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter::Retire(parameters_[i]->ExchangePlaced(std::move(placed_[i])));
    }
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i]->ExchangeValue(std::move(values_[i]));
  }
  EmptySlots(const EmptySlots&) = delete;
  EmptySlots& operator=(const EmptySlots&) = delete;

  void Materialize(const IntrusivePtr<MeshContext>& context, const SegmentCostOptions& options) {
    for (Parameter* parameter : parameters_) {
      const Layout whole(parameter->spec().shape.ndim(), /*num_axes=*/0);
      parameter->Materialize(context, options.dtype, options.compute_dtype.value_or(options.dtype),
                             {.at_rest = whole, .compute = whole});
    }
    for (ModuleBuffer* buffer : buffers_) {
      buffer->Materialize(context, ModuleBuffer::DefaultDType(options.dtype),
                          Layout(buffer->spec().shape.ndim(), /*num_axes=*/0));
    }
  }

 private:
  const std::vector<Parameter*> parameters_;
  const std::vector<ModuleBuffer*> buffers_;
  std::vector<Parameter::Placed> placed_;
  std::vector<DTensor> values_;
};

// A model's modules lie on a context while it lives, then where they did.
class BoundModules {
 public:
  BoundModules(SegmentedModule& model, const IntrusivePtr<MeshContext>& context)
      : modules_(model.AllModules()) {
    placed_.reserve(modules_.size());
    for (Module* module : modules_) {
      placed_.push_back(module->ExchangePlaced({}));
      module->Bind(context);
    }
  }
  ~BoundModules() {
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->ExchangePlaced(std::move(placed_[i]));
  }
  BoundModules(const BoundModules&) = delete;
  BoundModules& operator=(const BoundModules&) = delete;

 private:
  const std::vector<Module*> modules_;
  std::vector<Module::Placed> placed_;
};

class Measurement {
 public:
  Measurement(SegmentedModule& model, const IntrusivePtr<MeshContext>& context,
              const SegmentCostOptions& options)
      : model_(model),
        context_(context),
        options_(options),
        clock_(options.clock ? options.clock : SteadySeconds),
        num_segments_(static_cast<int>(model.segments().size())) {}

  std::vector<double> Run(const Microbatch& microbatch) {
    const BoundModules bound(model_, context_);
    std::vector<std::string> signatures;
    std::map<std::string, std::vector<double>> seconds;  // by signature
    DTensors inputs = microbatch.inputs;
    for (int segment = 0; segment < num_segments_; ++segment) {
      signatures.push_back(SignatureOf(segment, inputs));
      std::vector<double>& of_these = seconds[signatures.back()];
      inputs = Measure(segment, std::move(inputs), microbatch.targets, &of_these);
    }
    std::vector<double> costs;
    for (const std::string& signature : signatures) costs.push_back(MedianOf(seconds.at(signature)));
    return costs;
  }

 private:
  bool IsLast(int segment) const { return segment + 1 == num_segments_; }

  // Those that are where the segment runs: of its modules, and of modules that no segment has, which every stage has.
  std::vector<ModuleBuffer*> BuffersOf(int segment) const {
    std::set<const ModuleBuffer*> own, others;
    for (int i = 0; i < num_segments_; ++i) {
      for (Module* module : model_.segments()[i].modules) {
        for (const ModuleBuffer* buffer : module->AllBuffers()) (i == segment ? own : others).insert(buffer);
      }
    }
    std::vector<ModuleBuffer*> buffers = model_.AllBuffers();
    std::erase_if(buffers, [&](const ModuleBuffer* each) { return others.count(each) > own.count(each); });
    return buffers;
  }

  // Equal for segments that cannot be told apart.
  std::string SignatureOf(int index, const DTensors& inputs) const {
    const Segment& segment = model_.segments()[index];
    std::string text = absl::StrCat(IsLast(index) ? "last, " : "", NumberText(segment.cost));
    for (const DTensor& input : inputs) {
      absl::StrAppend(&text, "; ", input.defined() ? input.type().ToString() : "undefined",
                      input.requires_grad() ? " with gradient" : "");
    }
    for (Module* module : segment.modules) {
      for (const Module* each : module->AllModules()) absl::StrAppend(&text, "; ", ModuleTypeName(*each));
    }
    for (const Parameter* parameter : model_.ParametersOfSegments(index, index + 1)) {
      absl::StrAppend(&text, "; ", parameter->spec().shape.ToString(),
                      parameter->trainable() ? "" : " frozen");
    }
    return text;
  }

  // Returns what the segment makes, without history; a tensor that had one says so by requires_grad().
  DTensors Measure(int segment, DTensors inputs, const DTensor& targets, std::vector<double>* seconds) {
    EmptySlots slots(model_.ParametersOfSegments(segment, segment + 1), BuffersOf(segment));
    slots.Materialize(context_, options_);
    DTensors made, seeds;
    for (int repeat = 0; repeat <= options_.repeats; ++repeat) {
      DTensors given;  // leaves without a gradient yet
      for (const DTensor& input : inputs) {
        given.push_back(input.requires_grad() ? input.Detach().RequiresGrad() : input);
      }
      made.clear();
      WaitForDevice();
      const double begun = clock_();
      RunOnce(segment, std::move(given), targets, &made, &seeds);
      WaitForDevice();
      const double taken = clock_() - begun;
      if (repeat > 0) seconds->push_back(taken);
    }
    return made;
  }

  // `seeds`: of the backward pass; made the first time.
  void RunOnce(int segment, DTensors inputs, const DTensor& targets, DTensors* made, DTensors* seeds) {
    DTensors with_history;
    {
      const ModuleCall call(model_);
      if (segment == 0) inputs = call.Inputs(inputs);
      DTensors outputs = model_.RunSegments(segment, segment + 1, std::move(inputs));
      if (IsLast(segment)) {
        outputs = {model_.LossOf(call.Outputs(outputs), targets).Mean()};
      }
      for (const DTensor& output : outputs) {
        const bool has_history = output.requires_grad();
        if (has_history) with_history.push_back(output);
        made->push_back(has_history ? output.Detach().RequiresGrad() : output);
      }
    }
    if (with_history.empty()) return;  // nothing of it is trained
    if (seeds->empty()) {
      for (const DTensor& output : with_history) seeds->push_back(FullLike(output.Detach(), 1));
    }
    Backward(with_history, *seeds);
  }

  // Until it has computed what has been asked of it: a read of what comes last.
  void WaitForDevice() const { Full(context_, DType::kF32, Shape(), 0).Item(); }

  SegmentedModule& model_;
  const IntrusivePtr<MeshContext> context_;
  const SegmentCostOptions& options_;
  const std::function<double()> clock_;
  const int num_segments_;
};

void CheckIsSpec(SegmentedModule& model) {
  const std::vector<Parameter*> parameters = model.RegisteredParameters();
  const bool has_values =
      model.stages() || std::any_of(parameters.begin(), parameters.end(),
                                    [](const Parameter* parameter) { return parameter->materialized(); });
  if (!has_values) return;
  Throw(absl::StatusCode::kFailedPrecondition,
        "MeasureSegmentCosts: the model has values already; expected it before Parallelize");
}

}  // namespace

std::vector<double> MeasureSegmentCosts(
    SegmentedModule& model, World& world, const DeviceMesh& mesh,
    absl::FunctionRef<Microbatch(const IntrusivePtr<MeshContext>& context)> make,
    const SegmentCostOptions& options) {
  WEFT_REQUIRE(options.repeats >= 1, "MeasureSegmentCosts: expected at least one repeat, got ",
               options.repeats);
  CheckIsSpec(model);
  std::vector<int> ranks = mesh.ranks();
  std::sort(ranks.begin(), ranks.end());
  const std::shared_ptr<Communicator> group =
      world.NewGroup("segment costs", ranks, {.timeout = std::chrono::hours(1)});
  const size_t num_segments = model.segments().size();
  std::vector<double> costs(num_segments);
  std::exception_ptr failure;
  if (world.rank() == ranks[0]) {
    try {
      const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh(std::vector<MeshAxis>(), {ranks[0]}));
      costs = Measurement(model, context, options).Run(make(context));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  costs.push_back(failure ? 0 : 1);  // the others wait for it
  const Tensor shared = Tensor::FromValues<double>({std::ssize(costs)}, costs, world.allocator());
  group->Broadcast(shared, /*root=*/0).Wait();
  if (failure) std::rethrow_exception(failure);
  costs = shared.ToVector<double>();
  if (costs.back() == 0) {
    Throw(absl::StatusCode::kFailedPrecondition, "MeasureSegmentCosts: rank ", ranks[0],
          " measures for all, and has failed: its error says why");
  }
  costs.pop_back();
  return costs;
}

Plan WithSegmentCosts(const Plan& plan, absl::Span<const double> costs) {
  std::vector<PlanEntry> entries = plan.entries();
  for (PlanEntry& entry : entries) {
    if (!FindStyle(entry.style.name).makes_stages) continue;
    entry.style.fields.erase("sizes");  // a style has one of the two
    entry.style = entry.style.With("costs", StyleValue(JoinNumbers(costs, " ")));
  }
  return Plan(std::move(entries), plan.scheduler_choices());
}

}  // namespace weft
