#include "parallel/pipeline/executor.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/functions.h"
#include "dtensor/tape/saved_value.h"
#include "parallel/pipeline/checker.h"
#include "runtime/tensor/copy.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

using Kind = ActionKind;

const ModelStages& StagesOf(const SegmentedModule& model) {
  if (!model.stages()) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "PipelineExecutor: the model is not cut into stages; its plan needs an entry like {\"blocks.*\", "
          "Pipeline(\"pp\")}");
  }
  return *model.stages();
}

PipelineSchedule Lowered(const PipelineSchedule& schedule, const ModelStages& stages,
                         const ExecutorOptions& options) {
  if (!options.rendezvous) CheckCanRun(schedule, options);
  WEFT_REQUIRE(schedule.stage_rank == stages.stage_ranks, "schedule ", schedule.name,
               ": its stages lie on ranks [", absl::StrJoin(schedule.stage_rank, ", "),
               "], those of the model on [", absl::StrJoin(stages.stage_ranks, ", "), "]");
  return schedule.lowered() ? schedule : LowerSchedule(schedule, options.lowering);
}

bool Contains(const PipelineSchedule& schedule, Kind kind) {
  for (const std::vector<ScheduleItem>& list : schedule.ranks) {
    for (const ScheduleItem& item : list) {
      for (const PipelineAction& action : item.actions) {
        if (action.kind == kind) return true;
      }
    }
  }
  return false;
}

// Whether an item is the send of what an action makes.
bool SendsWhatMakes(const ScheduleItem& item, const PipelineAction& action) {
  const Kind sends = action.kind == Kind::kForward ? Kind::kSendForward : Kind::kSendBackward;
  return !item.overlapped() && item.actions[0] == PipelineAction{sends, action.stage, action.microbatch};
}

// What microbatches have in common whose tensors lie alike.
std::string KindOf(const Microbatch& microbatch) {
  return absl::StrJoin(microbatch.inputs, " ",
                       [](std::string* out, const DTensor& x) { absl::StrAppend(out, x.ToString()); });
}

}  // namespace

void CheckCanRun(const PipelineSchedule& schedule, const ExecutorOptions& options) {
  const ScheduleCertificate certificate = CheckSchedule(schedule);
  WEFT_REQUIRE(certificate.ok, "schedule ", schedule.name, ": ", certificate.error);
  WEFT_REQUIRE(options.update || !Contains(schedule, Kind::kOpt), "schedule ", schedule.name,
               " updates parameters within the step (OPT): expected ExecutorOptions::update, which says how");
}

// The parameters of a stage have the values that a microbatch has read.
class PipelineExecutor::WeightsGuard {
 public:
  WeightsGuard(const std::vector<Parameter*>& parameters, const std::vector<DTensor>& weights)
      : parameters_(parameters) {
    for (size_t i = 0; i < weights.size(); ++i) before_.push_back(parameters[i]->ExchangeValue(weights[i]));
  }
  ~WeightsGuard() {
    for (size_t i = 0; i < before_.size(); ++i) parameters_[i]->ExchangeValue(std::move(before_[i]));
  }
  WeightsGuard(const WeightsGuard&) = delete;
  WeightsGuard& operator=(const WeightsGuard&) = delete;

 private:
  const std::vector<Parameter*>& parameters_;
  std::vector<DTensor> before_;
};

PipelineExecutor::PipelineExecutor(SegmentedModule& model, const PipelineSchedule& schedule,
                                   ExecutorOptions options)
    : model_(model),
      stages_(StagesOf(model)),
      options_(std::move(options)),
      part_(model.context()),
      index_(static_cast<int>(stages_.context->coordinate()[stages_.axis])),
      schedule_(Lowered(schedule, stages_, options_)),
      updates_(Contains(schedule_, Kind::kOpt)),
      parameters_(stages_.num_stages()),
      messages_(stages_, part_, options_.rendezvous) {
  std::set<const Parameter*> known;
  for (int stage = 0; updates_ && stage < stages_.num_stages(); ++stage) {
    parameters_[stage] = ParametersOf(stage);
    for (const Parameter* parameter : parameters_[stage]) {
      WEFT_REQUIRE(known.insert(parameter).second, "schedule ", schedule_.name,
                   " updates stage by stage; parameter '", parameter->path(), "' is on several stages");
    }
  }
}

std::vector<Parameter*> PipelineExecutor::ParametersOf(int stage) const {
  std::vector<Parameter*> parameters;
  const auto add = [&](Parameter* parameter) {
    if (std::find(parameters.begin(), parameters.end(), parameter) == parameters.end())
      parameters.push_back(parameter);
  };
  for (int i = stages_.first_segments[stage]; i < stages_.first_segments[stage + 1]; ++i) {
    const Segment& segment = model_.segments()[i];
    for (Module* module : segment.modules) {
      for (Parameter* parameter : module->AllParameters()) add(parameter);
    }
    for (Parameter* parameter : segment.parameters) add(parameter);
  }
  return parameters;
}

DTensor PipelineExecutor::Run(absl::Span<const Microbatch> microbatches, const DTensor& total) {
  WEFT_REQUIRE(std::ssize(microbatches) == schedule_.num_microbatches, "schedule ", schedule_.name,
               " is made for ", schedule_.num_microbatches, " microbatches, got ", microbatches.size());
  total_ = total;
  RunList(schedule_, microbatches);
  const bool reduces = Contains(schedule_, Kind::kReduceGrad);
  for (int stage = 0; stage < stages_.num_stages(); ++stage) {
    if (!reduces && IsHere(stage)) stages_.data->ReduceGradients(stage);
  }
  stages_.data->FinishGradients();
  total_ = DTensor();
  return TermOfAll(std::exchange(loss_, DTensor()));
}

LossSum PipelineExecutor::ForwardLoss(absl::Span<const Microbatch> microbatches) {
  WEFT_REQUIRE(!microbatches.empty(), "ForwardLoss: expected at least one microbatch, got none");
  const NoGradGuard no_grad(part_->state());
  RunList(ForwardList(static_cast<int>(microbatches.size())), microbatches);
  const DTensor sum = TermOfAll(std::exchange(loss_, DTensor()));
  return {.sum = sum, .count = TermOfAll(std::exchange(count_, DTensor()))};
}

DTensors PipelineExecutor::ForwardOutputs(const DTensors& inputs) {
  const NoGradGuard no_grad(part_->state());
  const Microbatch microbatch = {.inputs = inputs};
  wants_outputs_ = true;
  RunList(ForwardList(1), absl::MakeConstSpan(&microbatch, 1));
  wants_outputs_ = false;
  return messages_.SpreadOutputs(std::exchange(outputs_, {}));
}

const PipelineSchedule& PipelineExecutor::ForwardList(int num_microbatches) {
  const auto [found, is_new] = forward_lists_.try_emplace(num_microbatches);
  if (is_new) found->second = LowerForward(stages_.stage_ranks, num_microbatches, options_.lowering);
  return found->second;
}

void PipelineExecutor::RunList(const PipelineSchedule& schedule, absl::Span<const Microbatch> microbatches) {
  flights_.clear();  // of a run that failed
  num_updates_.assign(stages_.num_stages(), 0);
  previous_weights_.assign(stages_.num_stages(), {});
  microbatches_ = microbatches;
  kinds_.clear();
  const char* const history = part_->state().grad_enabled() ? "" : "no history, ";
  for (const Microbatch& microbatch : microbatches)
    kinds_.push_back(absl::StrCat(history, KindOf(microbatch)));
  const bool gathers = !Contains(schedule, Kind::kUnshard);
  for (int stage = 0; stage < stages_.num_stages(); ++stage) {
    if (gathers && IsHere(stage)) stages_.data->Unshard(stage);
  }
  const std::vector<ScheduleItem>& list = schedule.ranks[index_];
  for (size_t i = 0; i < list.size();) {
    const ScheduleItem& item = list[i++];
    for (const PipelineAction& action : item.actions) {
      RunNamed(action);
      // What a part of a pair has made, and is sent right behind the pair, goes before the other part.
      while (item.overlapped() && i < list.size() && SendsWhatMakes(list[i], action)) {
        RunNamed(list[i++].actions[0]);
      }
    }
  }
  for (int stage = 0; stage < stages_.num_stages(); ++stage) {
    if (gathers && IsHere(stage)) stages_.data->Reshard(stage);
  }
  for (const auto& [place, flight] : flights_) {
    Require(flight.outputs.empty() && flight.deferred.empty(), {Kind::kBackward, place.first, place.second});
  }
  flights_.clear();
  previous_weights_.clear();
  messages_.Finish();
}

void PipelineExecutor::RunNamed(const PipelineAction& action) {
  World& world = stages_.context->world();
  const Named& named = NameOf(action);
  world.flight_recorder().SetActivity(named.activity);
  const Span span(world.tracer(), world.rank(), "step", named.activity);
  const PathGuard path(part_->state(), named.path_id);
  if (options_.on_action) options_.on_action(action, /*begins=*/true);
  RunAction(action);
  if (options_.on_action) options_.on_action(action, /*begins=*/false);
}

// What an action needs is there, in every list that the checker passes.
void PipelineExecutor::Require(bool is_there, const PipelineAction& action) {
  if (is_there) return;
  Throw(absl::StatusCode::kInternal, "pipeline: ", action.ToString(),
        " is not where the list has what it needs");
}

void PipelineExecutor::MeetOtherEnd() {
  if (options_.rendezvous) messages_.Finish();
}

void PipelineExecutor::RunAction(const PipelineAction& action) {
  Require(IsHere(action.stage), action);
  switch (action.kind) {
    case Kind::kForward:
      return Forward(action);
    case Kind::kInputGradient:
      return InputGradient(action);
    case Kind::kWeightGradient:
      return WeightGradient(action);
    case Kind::kBackward:
      return FullBackward(action);
    case Kind::kUnshard:
      return stages_.data->Unshard(action.stage);
    case Kind::kReshard:
      return stages_.data->Reshard(action.stage);
    case Kind::kReduceGrad:
      return stages_.data->ReduceGradients(action.stage);
    case Kind::kSendForward:
      Require(!FlightOf(action).to_send.empty(), action);
      messages_.SendForward(action.stage, KindAt(action), FlightOf(action).handed,
                            std::exchange(FlightOf(action).to_send, {}));
      return MeetOtherEnd();
    case Kind::kRecvForward:
      FlightOf(action).arrival = messages_.RecvForward(action.stage, KindAt(action));
      if (options_.rendezvous) FlightOf(action).arrival.Wait();
      return;
    case Kind::kSendBackward:
      Require(!FlightOf(action).gradients.empty(), action);
      messages_.SendBackward(action.stage, std::exchange(FlightOf(action).gradients, {}));
      return MeetOtherEnd();
    case Kind::kRecvBackward:
      Require(!FlightOf(action).handed.empty(), action);
      FlightOf(action).output_gradients = messages_.RecvBackward(action.stage, FlightOf(action).handed);
      if (options_.rendezvous) FlightOf(action).output_gradients.Wait();
      return;
    case Kind::kWaitSendForward:
    case Kind::kWaitSendBackward:
    case Kind::kWaitReduceGrad:
      return;  // what is sent stays until it has left, and who reads a gradient waits for it
    case Kind::kOpt:
      return Update(action.stage);
  }
}

void PipelineExecutor::Forward(const PipelineAction& action) {
  const auto [kind, stage, number] = action;
  const Microbatch& microbatch = microbatches_[number];
  Flight& flight = FlightOf(action);
  RankState& state = part_->state();
  const bool records = state.grad_enabled();
  Require(!std::exchange(flight.has_begun, true) && (stage == 0 || !flight.arrival.tensors.empty()), action);
  if (stage > 0) {
    AwaitArrival({Kind::kRecvForward, stage, number}, action, flight.arrival);
    const std::vector<bool> wants = flight.arrival.wants_gradient;
    flight.inputs = std::exchange(flight.arrival.tensors, {});
    for (size_t i = 0; i < wants.size(); ++i) {
      if (records && wants[i]) flight.inputs[i] = flight.inputs[i].RequiresGrad();
    }
  } else {
    flight.inputs = microbatch.inputs;
  }

  if (updates_ && records) flight.weights = WeightsFor(action);
  const WeightsGuard weights(parameters_[stage], flight.weights);
  const BatchOffsetGuard offset(state, microbatch.batch_offset);
  const ModuleCall call(model_);
  DTensors inputs = flight.inputs;
  if (stage == 0 && !inputs.empty()) inputs[0] = call.Input(inputs[0]);
  DTensors first;
  DTensors outputs = model_.RunSegments(stages_.first_segments[stage], stages_.first_segments[stage + 1],
                                        std::move(inputs), &first);
  if (IsLast(stage)) {
    outputs[0] = call.Output(outputs[0]);
    if (wants_outputs_) {
      for (const DTensor& output : outputs) outputs_.push_back(output.Detach());
      return;
    }
    TakeLoss(flight, model_.LossOf(outputs, microbatch.targets));
  } else {
    outputs = ToHand(outputs);
    flight.handed = DescribeHanded(outputs);
    for (const DTensor& output : outputs) {
      if (output.requires_grad()) flight.outputs.push_back(HistoryOf(output));
    }
  }
  if (!records) {
    flight.inputs.clear();
  } else {
    // A first stage has no input that wants a gradient: what its first segment makes is where its backward is cut in two.
    for (const DTensor& target : stage > 0 ? flight.inputs : first) {
      if (target.requires_grad()) flight.targets.push_back(stage > 0 ? target : HistoryOf(target));
    }
  }
  if (IsLast(stage)) return;
  for (const DTensor& output : outputs)
    flight.to_send.push_back(output.requires_grad() ? output.Detach() : output);
  if (!IsHere(stage + 1)) return;
  Flight& next = flights_[{stage + 1, number}];
  next.arrival.tensors = std::exchange(flight.to_send, {});
  for (const HandedTensor& each : flight.handed) next.arrival.wants_gradient.push_back(each.wants_gradient);
}

// The sum over the microbatches; backward begins at each one's own.
void PipelineExecutor::TakeLoss(Flight& flight, const LossSum& loss) {
  DTensor value = loss.sum;
  if (total_.defined()) {
    value = loss.Over(total_);
    flight.outputs = {value};
  }
  const NoGradGuard no_grad(part_->state());
  const MemoryKindGuard kind(*part_->allocator(), MemoryKind::kOther);  // backward reads none of it
  const auto add = [](DTensor& sum, const DTensor& term) {
    const DTensor wide = Cast(term.Detach(), DType::kF64);
    sum = sum.defined() ? Add(sum, wide) : Scale(wide, 1);  // of its own memory
  };
  add(loss_, value);
  if (!total_.defined()) add(count_, loss.count);
}

// What is waited for is the receive; the action goes on behind it.
void PipelineExecutor::AwaitArrival(const PipelineAction& receive, const PipelineAction& action,
                                    Arrival& arrival) {
  if (arrival.works.empty()) return;
  FlightRecorder& recorder = stages_.context->world().flight_recorder();
  recorder.SetActivity(NameOf(receive).activity);
  arrival.Wait();
  recorder.SetActivity(NameOf(action).activity);
}

// The gradients of a stage's outputs; of the last one's loss none are needed.
DTensors PipelineExecutor::TakeSeeds(const PipelineAction& action, Flight& flight) {
  AwaitArrival({Kind::kRecvBackward, action.stage, action.microbatch}, action, flight.output_gradients);
  Require(IsLast(action.stage) || flight.output_gradients.tensors.size() == flight.outputs.size(), action);
  Require(!flight.outputs.empty(), action);
  return std::exchange(flight.output_gradients.tensors, {});
}

void PipelineExecutor::InputGradient(const PipelineAction& action) {
  Flight& flight = FlightOf(action);
  DTensors seeds = TakeSeeds(action, flight);
  if (flight.targets.empty()) {  // all of it is W's
    flight.seeds = std::move(seeds);
    return;
  }
  flight.is_split = true;
  const WeightsGuard weights(parameters_[action.stage], flight.weights);
  const DTensors outputs = std::exchange(flight.outputs, {});
  const DTensors targets = std::exchange(flight.targets, {});
  DTensors gradients;
  for (DTensor& gradient :
       Grad(outputs, targets, {.seeds = seeds, .allow_unused = true, .deferred = &flight.deferred})) {
    gradients.push_back(std::move(gradient));
  }
  flight.inputs.clear();
  if (action.stage > 0) HandBack(action, targets, std::move(gradients));
}

void PipelineExecutor::WeightGradient(const PipelineAction& action) {
  Flight& flight = FlightOf(action);
  const WeightsGuard weights(parameters_[action.stage], flight.weights);
  if (flight.is_split) {
    flight.deferred.Run();
  } else {
    Require(flight.targets.empty() && !flight.outputs.empty(), action);  // I had nothing to do
    Backward(flight.outputs, flight.seeds);
  }
  Land(action);
}

void PipelineExecutor::FullBackward(const PipelineAction& action) {
  Flight& flight = FlightOf(action);
  const DTensors seeds = TakeSeeds(action, flight);
  const WeightsGuard weights(parameters_[action.stage], flight.weights);
  const DTensors outputs = std::exchange(flight.outputs, {});
  Backward(outputs, seeds);
  if (action.stage > 0) {
    DTensors gradients;
    for (const DTensor& target : flight.targets) gradients.push_back(target.grad());
    HandBack(action, flight.targets, std::move(gradients));
  }
  Land(action);
}

// To the stage before: at once, if it is here.
void PipelineExecutor::HandBack(const PipelineAction& action, const DTensors& targets, DTensors gradients) {
  const NoGradGuard no_grad(part_->state());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = FullLike(targets[i], 0);
  }
  if (IsHere(action.stage - 1)) {
    flights_[{action.stage - 1, action.microbatch}].output_gradients.tensors = std::move(gradients);
  } else {
    FlightOf(action).gradients = std::move(gradients);
  }
}

// Nothing but gradients that are still to be sent is left of it.
void PipelineExecutor::Land(const PipelineAction& action) {
  Flight& flight = FlightOf(action);
  flight = {.gradients = std::exchange(flight.gradients, {})};
}

// What the microbatch's forward is to read.
std::vector<DTensor> PipelineExecutor::WeightsFor(const PipelineAction& forward) const {
  const int stage = forward.stage;
  if (schedule_.versions == WeightVersions::kPrevious) {
    const int group = forward.microbatch / std::max(1, schedule_.microbatches_per_update);
    // The checker has seen to it that the update before the last has been made, and no more than one since.
    if (std::max(0, group - 1) < num_updates_[stage]) return previous_weights_[stage];
  }
  std::vector<DTensor> weights;
  for (const Parameter* parameter : parameters_[stage]) weights.push_back(parameter->at_rest());
  return weights;
}

void PipelineExecutor::Update(int stage) {
  const bool is_read = std::any_of(flights_.begin(), flights_.end(), [&](const auto& flight) {
    return flight.first.first == stage && !flight.second.weights.empty();
  });
  const bool keeps = schedule_.versions == WeightVersions::kPrevious;
  if (keeps) {
    previous_weights_[stage].clear();
    for (const Parameter* parameter : parameters_[stage])
      previous_weights_[stage].push_back(parameter->at_rest());
  }
  if (is_read || keeps) {
    for (Parameter* parameter : parameters_[stage]) parameter->Fork();
  }
  options_.update(stage);
  ++num_updates_[stage];
}

// A scalar of the last stage as a sum over the ranks of the whole model: every other rank's term is 0.
DTensor PipelineExecutor::TermOfAll(const DTensor& scalar) const {
  const DeviceMesh& mesh = stages_.context->mesh();
  Layout terms(/*ndim=*/0, mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) terms = terms.WithPartial(axis);
  Tensor term = Tensor::Empty(part_->allocator(), DType::kF64, Shape());
  bool is_addend = scalar.defined();  // on the ranks of the last stage
  for (int axis = 0; scalar.defined() && axis < mesh.num_axes(); ++axis) {
    const bool is_replica = !scalar.layout().IsPartial(axis) && part_->coordinate()[axis] != 0;
    is_addend = is_addend && !is_replica;
  }
  if (is_addend) {
    term = scalar.ToLocal();
  } else {
    FillTensor(term, 0);
  }
  return DTensor::FromLocal(stages_.context, term, terms, Shape());
}

const PipelineExecutor::Named& PipelineExecutor::NameOf(const PipelineAction& action) {
  const auto [found, is_new] = names_.try_emplace({action.kind, action.stage, action.microbatch});
  if (is_new) {
    std::string text = absl::StrCat(ActionKindName(action.kind), " of stage ", action.stage);
    if (HasMicrobatch(action.kind)) absl::StrAppend(&text, ", microbatch ", action.microbatch);
    found->second = {.activity = stages_.context->world().flight_recorder().KeepActivity(text),
                     .path_id = part_->state().PathId(absl::StrCat("stage ", action.stage))};
  }
  return found->second;
}

}  // namespace weft
