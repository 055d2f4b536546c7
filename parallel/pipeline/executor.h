// Runs schedules.

#ifndef WEFT_PARALLEL_PIPELINE_EXECUTOR_H_
#define WEFT_PARALLEL_PIPELINE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/dtensor.h"
#include "dtensor/functions/loss.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/pipeline/action_names.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/stage_loss.h"
#include "parallel/pipeline/stage_messages.h"
#include "parallel/pipeline/weight_stash.h"

namespace weft {

// One part of a step's batch, on the context of the model's part (Module::context), the same on every stage. Inputs may
// want a gradient (DTensor::RequiresGrad), of some microbatches or of all: the first stage's ranks get it. They may be
// undefined, and so may what a segment makes beside others.
struct Microbatch {
  DTensors inputs = {};  // of the model's first segment
  DTensor targets = {};  // of SegmentedModule::LossOf
  // Where it begins in the step's batch (BatchOffsetGuard): those with one offset have the same random activations.
  int64_t batch_offset = 0;
};

struct ExecutorOptions {
  // Of schedules that are not lowered yet.
  LoweringOptions lowering = {};
  // Updates the parameters of a stage (ParametersOf) by their gradients, which have come to rest, and clears these: what OPT
  // does, in schedules that have it.
  std::function<void(int stage)> update = nullptr;
  // For tests of schedules: lowered lists run as they are, unchecked, and both ends of a transfer wait where it stands.
  bool rendezvous = false;
  // Called with each action before it runs and when it has ended. To measure.
  std::function<void(const PipelineAction& action, bool begins)> on_action = nullptr;
};

// Whether a schedule can be run, by the schedule alone.
// Errors: InvalidArgument, with the checker's words, for one that is wrong, and for one that updates parameters itself
//         (OPT) where the options do not say how.
void CheckCanRun(const PipelineSchedule& schedule, const ExecutorOptions& options = {});

// Runs the stages of a model by a schedule, any that the checker passes: one loop over this rank's list. Forward and
// backward of a stage are those of the model's segments; what they make is that of one device, whatever the schedule.
//
//   Parallelize(model, context, {{"blocks.*", Pipeline("pp")}, ...});
//   PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 4, .microbatches = 8}));
//   trainer.Step(pipeline, microbatches);
//
// Receives are posted where the list has them and waited for by what reads them. Sends are waited for by nobody, unless more
// are under way than there are stages (StageMessages): so messages travel while the rank computes. What a stage saved for
// backward goes as the schedule says: I leaves what W reads, the stage's inputs and the gradients of products; W, or B,
// leaves nothing. Gradients add up on each rank and are reduced once a step (REDUCE_GRAD, or at the end where the list has
// none); parameters of FSDP units are whole from UNSHARD to RESHARD, or all the step where the list has none. Pairs that
// overlap run one part after the other.
//
// Schedules that update within the step (WeightVersions other than kOne): a microbatch's backward reads the weights that its
// forward read, whatever updates came in between; an update goes on in a copy while microbatches in flight read what it
// would change, and copies go with their last reader (PipeDream's stash). Results are those of a single device with the
// same delays.
// Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", 2019; "Memory-efficient
//         pipeline-parallel DNN training", 2021, for 2BW.
//
// Threads: the rank's. Every rank of the model makes one alike, and calls alike.
class PipelineExecutor {
 public:
  // `model` was cut by Parallelize; it outlives the executor, which serves until the model is spread anew: Run and the others
  // throw FailedPrecondition then.
  // Cost:   communicators for the messages.
  // Errors: as CheckCanRun; FailedPrecondition if the model is not cut; InvalidArgument for a schedule whose stages do not
  //         lie as the model's, or that updates within the step where stages have parameters in common, or where each
  //         lies on several ranks and nothing reduces its gradients (REDUCE_GRAD).
  PipelineExecutor(SegmentedModule& model, const PipelineSchedule& schedule, ExecutorOptions options = {});

  // Forward and backward of one batch in the schedule's number of microbatches: the gradients of
  // sum of LossOf(outputs, targets).Over(total) are added to the parameters' and brought to rest.
  // Returns that sum, an f64 with no history on the whole model's context, Partial along all of its axes that are not fixed.
  // `total`: as of LossSum::Over; where the schedule updates within the step, of the microbatches of one update.
  // Errors: InvalidArgument for another number of microbatches, or a `total` that is no scalar on the context of the model's
  //         part, on every rank; FailedPrecondition that names a stage which hands on something else than it did before of
  //         inputs alike (a hook was hung meanwhile); whatever the model throws. Then nothing of the run is left here, though
  //         gradients at rest may have parts of it: clear them. Ranks that wait for this one learn of it as they do of any that
  //         failed.
  DTensor Run(absl::Span<const Microbatch> microbatches, const DTensor& total);

  // Forward alone, with no history, of any number of microbatches: the sum of their losses and of what they count, as
  // Run returns it.
  LossSum ForwardLoss(absl::Span<const Microbatch> microbatches);

  // Forward alone: what the last segment makes of these inputs, on every stage, with no history.
  // Cost: beside the pipeline's messages a broadcast along its axis.
  DTensors ForwardOutputs(const DTensors& inputs);

  // As it runs: lowered.
  const PipelineSchedule& schedule() const { return schedule_; }
  // Whether that updates parameters within the step.
  bool updates() const { return updates_; }
  SegmentedModule& model() { return model_; }
  // Those that a stage reads, of those that this rank has.
  std::vector<Parameter*> ParametersOf(int stage) const;
  // Of the whole model.
  const IntrusivePtr<MeshContext>& context() const { return stages_.context; }

 private:
  // What one stage has of one microbatch, from its arrival until its last gradient.
  struct Flight {
    bool has_begun = false;         // F has run
    bool is_frozen = false;         // what it made has no history: no gradient comes back to it
    bool wants_none = false;        // no input wants a gradient
    Arrival arrival = {};           // of the inputs
    DTensors inputs = {};           // leaves, where they want a gradient
    HandedTensors handed = {};      // how the outputs lie
    DTensors to_send = {};          // the outputs, until they have been
    DTensors outputs = {};          // of those that want a gradient, the history; of the last stage, the loss
    Arrival output_gradients = {};  // theirs
    DTensors targets = {};          // what I stops at
    bool is_split = false;          // I has run, and left for W:
    DeferredGradients deferred = {};
    DTensors seeds = {};        // of W, where I had nothing to do
    DTensors gradients = {};    // of the inputs that want one, until they have been sent
    StageWeights weights = {};  // that F has read, where the step updates
  };

  bool IsLast(int stage) const { return stage + 1 == stages_.num_stages(); }
  bool IsHere(int stage) const { return stages_.stage_ranks[stage] == index_; }
  Flight& FlightOf(const PipelineAction& action) { return flights_[{action.stage, action.microbatch}]; }
  const std::string& KindAt(const PipelineAction& action) const { return kinds_[action.microbatch]; }
  void RunList(const PipelineSchedule& schedule, absl::Span<const Microbatch> microbatches,
               bool wants_outputs = false);
  void RunItems(const PipelineSchedule& schedule);
  void Abandon() noexcept;
  void RunNamed(const PipelineAction& action);
  void RunAction(const PipelineAction& action);
  static void Require(bool is_there, const PipelineAction& action);
  void MeetOtherEnd() {
    if (options_.rendezvous) messages_.Finish();
  }
  void Forward(const PipelineAction& action);
  void HandOn(const PipelineAction& action, const DTensors& outputs);
  void TakeLoss(Flight& flight, const LossSum& loss);
  void AwaitArrival(const PipelineAction& receive, const PipelineAction& action, Arrival& arrival);
  DTensors TakeSeeds(const PipelineAction& action, Flight& flight);
  void InputGradient(const PipelineAction& action);
  void WeightGradient(const PipelineAction& action);
  void FullBackward(const PipelineAction& action);
  void HandBack(const PipelineAction& action, const DTensors& targets, DTensors gradients);
  // Nothing but gradients that are still to be sent is left of it.
  void Land(const PipelineAction& action) {
    Flight& flight = FlightOf(action);
    flight = {.wants_none = flight.wants_none, .gradients = std::exchange(flight.gradients, {})};
  }
  void Update(int stage);
  std::vector<std::vector<Parameter*>> UpdatedParameters() const;
  const PipelineSchedule& ForwardList(int num_microbatches);

  SegmentedModule& model_;
  const ModelStages stages_;
  const ExecutorOptions options_;
  const IntrusivePtr<MeshContext> part_;
  const int index_;  // of this rank along the pipeline's axis
  PipelineSchedule schedule_;
  bool updates_ = false;                           // within the step
  std::map<int, PipelineSchedule> forward_lists_;  // by number of microbatches
  StageMessages messages_;
  StageLoss loss_;
  ActionNames names_;
  WeightStash stash_;

  // Of the run that is under way.
  absl::Span<const Microbatch> microbatches_;
  std::vector<std::string> kinds_;  // of the microbatches, for StageMessages
  std::map<std::pair<int, int>, Flight> flights_;
  DTensor total_;  // undefined: forward alone
  bool wants_outputs_ = false;
  DTensors outputs_;  // of the last stage, where they are wanted
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_EXECUTOR_H_
