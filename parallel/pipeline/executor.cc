#include "parallel/pipeline/executor.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module_type.h"
#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/run_order.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

using Kind = ActionKind;

const ModelStages& StagesOf(const SegmentedModule& model) {
  if (model.stages()) return *model.stages();
  Throw(absl::StatusCode::kFailedPrecondition, "PipelineExecutor: the model, a ", ModuleTypeName(model),
        ", is not cut into stages: expected one whose plan has an entry like "
        "{\"blocks.*\", Pipeline(\"pp\")}");
}

// `num_ranks`: of each stage.
PipelineSchedule Lowered(const PipelineSchedule& schedule, const ModelStages& stages, int64_t num_ranks,
                         const ExecutorOptions& options) {
  if (!options.rendezvous) CheckCanRun(schedule, options);
  WEFT_REQUIRE(schedule.stage_rank == stages.stage_ranks, "schedule ", schedule.name,
               ": its stages lie on ranks [", absl::StrJoin(schedule.stage_rank, ", "),
               "], those of the model on [", absl::StrJoin(stages.stage_ranks, ", "), "]");
  PipelineSchedule lowered = schedule.lowered() ? schedule : LowerSchedule(schedule, options.lowering);
  // Gradients of several ranks come to rest by REDUCE_GRAD alone: an update before it would read none of them.
  const bool updates_unreduced = lowered.Contains(Kind::kOpt) && !lowered.Contains(Kind::kReduceGrad);
  WEFT_REQUIRE(options.rendezvous || num_ranks == 1 || !updates_unreduced, "schedule ", schedule.name,
               " updates parameters within the step (OPT) of stages of ", num_ranks,
               " ranks each: expected REDUCE_GRAD before each OPT, got none");
  return lowered;
}

}  // namespace

void CheckCanRun(const PipelineSchedule& schedule, const ExecutorOptions& options) {
  const ScheduleCertificate certificate = CheckSchedule(schedule);
  WEFT_REQUIRE(certificate.ok, "schedule ", schedule.name, ": ", certificate.error);
  WEFT_REQUIRE(options.update || !schedule.Contains(Kind::kOpt), "schedule ", schedule.name,
               " updates parameters within the step (OPT): expected ExecutorOptions::update, got none");
}

PipelineExecutor::PipelineExecutor(SegmentedModule& model, const PipelineSchedule& schedule,
                                   ExecutorOptions options)
    : model_(model),
      stages_(StagesOf(model)),
      options_(std::move(options)),
      part_(model.context()),
      index_(static_cast<int>(stages_.context->coordinate()[stages_.axis])),
      schedule_(Lowered(schedule, stages_, part_->mesh().num_ranks(), options_)),
      updates_(schedule_.Contains(Kind::kOpt)),
      messages_(stages_, part_, options_.rendezvous),
      loss_(stages_.context, part_),
      names_(stages_.context->world().flight_recorder(), part_->state()),
      stash_(schedule_.versions, schedule_.microbatches_per_update, UpdatedParameters()) {}

// Of each stage, if they are updated within the step.
std::vector<std::vector<Parameter*>> PipelineExecutor::UpdatedParameters() const {
  std::vector<std::vector<Parameter*>> parameters(stages_.num_stages());
  std::set<const Parameter*> known;
  for (int stage = 0; updates_ && stage < stages_.num_stages(); ++stage) {
    parameters[stage] = ParametersOf(stage);
    for (const Parameter* parameter : parameters[stage]) {
      WEFT_REQUIRE(known.insert(parameter).second, "schedule ", schedule_.name,
                   " updates stage by stage; parameter '", parameter->path(), "' is on several stages");
    }
  }
  return parameters;
}

std::vector<Parameter*> PipelineExecutor::ParametersOf(int stage) const {
  return model_.ParametersOfSegments(stages_.first_segments[stage], stages_.first_segments[stage + 1]);
}

DTensor PipelineExecutor::Run(absl::Span<const Microbatch> microbatches, const DTensor& total) {
  WEFT_REQUIRE(std::ssize(microbatches) == schedule_.num_microbatches, "schedule ", schedule_.name,
               " is made for ", schedule_.num_microbatches, " microbatches, got ", microbatches.size());
  absl::Cleanup abandon = [this] { Abandon(); };
  total_ = total;
  stages_.data->Begin();
  RunList(schedule_, microbatches);
  if (!schedule_.Contains(Kind::kReduceGrad)) {
    for (const int stage : schedule_.StagesOf(index_)) stages_.data->ReduceGradients(stage);
  }
  stages_.data->FinishGradients();
  total_ = DTensor();
  std::move(abandon).Cancel();
  return loss_.Take().sum;
}

LossSum PipelineExecutor::ForwardLoss(absl::Span<const Microbatch> microbatches) {
  WEFT_REQUIRE(!microbatches.empty(), "ForwardLoss: expected at least one microbatch, got none");
  const NoGradGuard no_grad(part_->state());
  absl::Cleanup abandon = [this] { Abandon(); };
  total_ = DTensor();
  RunList(ForwardList(static_cast<int>(microbatches.size())), microbatches);
  std::move(abandon).Cancel();
  return loss_.Take();
}

DTensors PipelineExecutor::ForwardOutputs(const DTensors& inputs) {
  const NoGradGuard no_grad(part_->state());
  const Microbatch microbatch = {.inputs = inputs};
  absl::Cleanup abandon = [this] { Abandon(); };
  RunList(ForwardList(1), absl::MakeConstSpan(&microbatch, 1), /*wants_outputs=*/true);
  std::move(abandon).Cancel();
  return messages_.SpreadOutputs(std::exchange(outputs_, {}));
}

const PipelineSchedule& PipelineExecutor::ForwardList(int num_microbatches) {
  const auto [found, is_new] = forward_lists_.try_emplace(num_microbatches);
  if (is_new) found->second = LowerForward(stages_.stage_ranks, num_microbatches, options_.lowering);
  return found->second;
}

void PipelineExecutor::RunList(const PipelineSchedule& schedule, absl::Span<const Microbatch> microbatches,
                               bool wants_outputs) {
  if (!model_.stages() || model_.stages()->data != stages_.data) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "PipelineExecutor: the model has been spread anew since this executor was made: make another one");
  }
  if (&schedule == &schedule_) loss_.RequireTotal(total_);  // forward alone has none
  wants_outputs_ = wants_outputs;
  microbatches_ = microbatches;
  kinds_.clear();
  const bool records = part_->state().grad_enabled();
  const std::string common = absl::StrCat(ProductText(part_->state().autocast()), FrozenText(model_));
  for (const Microbatch& each : microbatches) kinds_.push_back(KindOf(each.inputs, records) + common);
  RunItems(schedule);
  for (const auto& [place, flight] : flights_) {
    Require(flight.outputs.empty() && flight.deferred.empty(), {Kind::kBackward, place.first, place.second});
  }
  flights_.clear();
  stash_.Restart();
  messages_.Finish();
}

// Nothing of a run that failed goes into the next one.
void PipelineExecutor::Abandon() noexcept {
  stages_.data->Abandon();
  flights_.clear();
  outputs_.clear();
  loss_.Clear();
  stash_.Restart();
  total_ = DTensor();
}

void PipelineExecutor::RunItems(const PipelineSchedule& schedule) {
  const bool gathers = !schedule.Contains(Kind::kUnshard);
  const std::vector<int> own = schedule_.StagesOf(index_);
  for (const int stage : own) {
    if (gathers) stages_.data->Unshard(stage);
  }
  for (const PipelineAction& action : RunOrder(schedule.ranks[index_])) RunNamed(action);
  for (const int stage : own) {
    if (gathers) stages_.data->Reshard(stage);
  }
}

void PipelineExecutor::RunNamed(const PipelineAction& action) {
  World& world = stages_.context->world();
  const ActionNames::Name& named = names_.Of(action);
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
      Require(FlightOf(action).wants_none || !FlightOf(action).gradients.empty(), action);
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
    flight.wants_none = std::find(wants.begin(), wants.end(), true) == wants.end();
    flight.inputs = std::exchange(flight.arrival.tensors, {});
    for (size_t i = 0; i < wants.size(); ++i) {
      if (records && wants[i]) flight.inputs[i] = flight.inputs[i].RequiresGrad();
    }
  } else {
    flight.inputs = microbatch.inputs;
  }

  if (updates_ && records) flight.weights = stash_.For(stage, number);
  const WeightStash::Reading reading(stash_, stage, flight.weights);
  const BatchOffsetGuard offset(state, microbatch.batch_offset);
  // Gradients stay on each rank until the last microbatch: what modules recompute may go by that.
  std::optional<NoSync> holds_back;
  if (number + 1 < std::ssize(microbatches_)) holds_back.emplace(state);
  const ModuleCall call(model_);
  DTensors inputs = stage == 0 ? call.Inputs(flight.inputs) : flight.inputs;
  DTensors first;
  DTensors outputs = model_.RunSegments(stages_.first_segments[stage], stages_.first_segments[stage + 1],
                                        std::move(inputs), stage == 0 ? &first : nullptr);
  if (IsLast(stage)) {
    outputs = call.Outputs(outputs);
    if (wants_outputs_) {
      for (const DTensor& output : outputs) outputs_.push_back(output.Detach());
      return;
    }
    TakeLoss(flight, LossOfMicrobatch(model_, outputs, microbatch.targets));
  } else {
    outputs = ToHand(outputs);
    flight.handed = DescribeHanded(outputs);
    for (const DTensor& output : outputs) {
      if (output.requires_grad()) flight.outputs.push_back(HistoryOf(output));
    }
    flight.is_frozen = records && flight.outputs.empty();
  }
  if (!records) {
    flight.inputs.clear();
  } else {
    // A first stage hands no gradient back: its backward is cut in two at what its first segment makes. Leaves are left out:
    // W brings their gradients to rest, and I would take them.
    for (const DTensor& target : stage > 0 ? flight.inputs : first) {
      if (!target.requires_grad() || (stage == 0 && target.impl()->node->edges().empty())) continue;
      flight.targets.push_back(stage > 0 ? target : HistoryOf(target));
    }
  }
  if (!IsLast(stage)) HandOn(action, outputs);
}

// To the next stage: at once, if it is here.
void PipelineExecutor::HandOn(const PipelineAction& action, const DTensors& outputs) {
  Flight& flight = FlightOf(action);
  for (const DTensor& output : outputs)
    flight.to_send.push_back(output.requires_grad() ? output.Detach() : output);
  if (!IsHere(action.stage + 1)) return;
  Arrival& arrival = flights_[{action.stage + 1, action.microbatch}].arrival;
  arrival.tensors = std::exchange(flight.to_send, {});
  for (const HandedTensor& each : flight.handed) arrival.wants_gradient.push_back(each.wants_gradient);
}

// The sum over the microbatches; backward begins at each one's own.
void PipelineExecutor::TakeLoss(Flight& flight, const LossSum& loss) {
  if (!total_.defined()) return loss_.Add(loss.sum, loss.count);
  flight.outputs = {loss.Over(total_)};
  loss_.AddOver(loss, total_);
}

// What is waited for is the receive; the action goes on behind it.
void PipelineExecutor::AwaitArrival(const PipelineAction& receive, const PipelineAction& action,
                                    Arrival& arrival) {
  if (arrival.works.empty()) return;
  FlightRecorder& recorder = stages_.context->world().flight_recorder();
  recorder.SetActivity(names_.Of(receive).activity);
  arrival.Wait();
  recorder.SetActivity(names_.Of(action).activity);
}

// The gradients of a stage's outputs; of the last one's loss none are needed.
DTensors PipelineExecutor::TakeSeeds(const PipelineAction& action, Flight& flight) {
  AwaitArrival({Kind::kRecvBackward, action.stage, action.microbatch}, action, flight.output_gradients);
  Require(IsLast(action.stage) || flight.output_gradients.tensors.size() == flight.outputs.size(), action);
  Require(!flight.outputs.empty() || flight.is_frozen, action);
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
  const WeightStash::Reading reading(stash_, action.stage, flight.weights);
  const DTensors outputs = std::exchange(flight.outputs, {});
  const DTensors targets = std::exchange(flight.targets, {});
  DTensors gradients(targets.size());
  if (!flight.is_frozen) {
    const auto made =
        Grad(outputs, targets, {.seeds = seeds, .allow_unused = true, .deferred = &flight.deferred});
    gradients.assign(made.begin(), made.end());
  }
  flight.inputs.clear();
  if (action.stage > 0) HandBack(action, targets, std::move(gradients));
}

void PipelineExecutor::WeightGradient(const PipelineAction& action) {
  Flight& flight = FlightOf(action);
  const WeightStash::Reading reading(stash_, action.stage, flight.weights);
  if (flight.is_split) {
    flight.deferred.Run();
  } else {
    // I had nothing to do.
    Require(flight.targets.empty() && (flight.is_frozen || !flight.outputs.empty()), action);
    if (!flight.is_frozen) Backward(flight.outputs, flight.seeds);
  }
  Land(action);
}

void PipelineExecutor::FullBackward(const PipelineAction& action) {
  Flight& flight = FlightOf(action);
  const DTensors seeds = TakeSeeds(action, flight);
  const WeightStash::Reading reading(stash_, action.stage, flight.weights);
  const DTensors outputs = std::exchange(flight.outputs, {});
  if (!flight.is_frozen) Backward(outputs, seeds);
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

void PipelineExecutor::Update(int stage) {
  const bool is_read = std::any_of(flights_.begin(), flights_.end(), [&](const auto& flight) {
    return flight.first.first == stage && !flight.second.weights.empty();
  });
  stash_.BeginUpdate(stage, is_read);
  options_.update(stage);
  stash_.EndUpdate(stage);
}

}  // namespace weft
