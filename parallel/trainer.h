#ifndef WEFT_PARALLEL_TRAINER_H_
#define WEFT_PARALLEL_TRAINER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "dtensor/functions/loss.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/schedule.h"
#include "parallel/pipeline/executor.h"
#include "parallel/replicas.h"
#include "parallel/step_metrics.h"

namespace weft {

class Trainer;

// What a program does beside the steps. Each rank calls its own, in the order of the options' list; those that
// communicate (an evaluation, a checkpoint) are there on every rank. Either may be empty.
struct TrainerCallback {
  // A step has ended: parameters and the optimizer's state are those after its update. To evaluate and to save.
  std::function<void(Trainer& trainer, int64_t step)> on_step_end = nullptr;
  // What a step was: `metrics.step`, the one before the step that has just been issued, or the last (Flush). To log.
  // It comes before that step's on_step_end.
  std::function<void(Trainer& trainer, const StepMetrics& metrics)> on_metrics = nullptr;
};

struct TrainerOptions {
  Schedule schedule = WarmupCosine();
  double grad_clip = 1;  // largest global gradient norm; 0: not clipped
  // Of the loss, for forward and backward in f16; null: none. The trainer views it and updates it with each step. A step
  // whose gradients overflow then changes nothing but the scale, and the next one goes on. Where gradients are compressed
  // (Communication) the host reads the scale at a step's begin, and at its end whether it was applied.
  LossScale* loss_scale = nullptr;
  // After so many steps each, replicas of the model's parameters, frozen ones too, of its buffers and of the optimizer's state
  // are compared bit by bit, those of stages that have a parameter in common too; 0: never.
  // Cost: CompareReplicas (parallel/replicas.h) and CompareAcrossStages (parallel/stage_replicas.h), and of a model in stages
  //       or parts one small all-gather over its ranks: the host waits for the device then.
  int64_t check_replicas_every = 0;
  std::vector<TrainerCallback> callbacks = {};
};

// Trains a materialized model with any optimizer, step by step. Where things lie is the model's plan; the trainer
// knows nothing of it. Construct and call it on every rank alike.
//
// A step is an attempt: schedule, random bits and the position in the data go by it. An update that is
// skipped is a step too, otherwise the same batch would come again for ever; the optimizer counts updates.
class Trainer {
 public:
  // `optimizer` has the parameters to train. The trainer views it and the model.
  // Errors: InvalidArgument without a schedule, and for a number of the options below 0.
  Trainer(Module& model, Optimizer& optimizer, TrainerOptions options = {});

  // One step: `loss` runs forward and returns the mean loss; then backward, global norm, clipping and the
  // update. Nothing of it is read back to the host. `num_tokens` is the global count, for the rate. `stop` is this
  // rank's wish to stop.
  //
  // Returns the record of the step *before* (StepMetrics::step says which), which has reached the host meanwhile;
  // nothing if there is none. Flush gives the last.
  //
  // A norm that is not finite makes the update skip itself on the device, and the next step's update too, since the
  // host has not seen the record by then. So when it has, parameters are still those of the bad step, and
  // FindNonFinite says where it went wrong: `loss` is kept until the step's successor has been recorded, and has to
  // own what it reads by then, for whoever calls FindNonFinite.
  // Cost:   besides the model's collectives, one small all-reduce over the mesh for the record
  //         (StepMetricsReduction), which nobody waits for in this step.
  // Errors: those of the step before too, where they come late; what callbacks throw; DataLoss on every rank, naming the
  //         step, the tensor and the ranks, if replicas are compared and have drifted apart.
  std::optional<StepMetrics> Step(int64_t num_tokens, std::function<DTensor()> loss, bool stop = false);

  // The same of a batch in `microbatches` parts, i from 0 on, whose gradients add up: one update, the one that
  // the whole batch would make, whatever each part counts. `count(i)` is how many positions part i counts, of
  // the targets alone (CountTargets): all counts come before the first forward, and every part's sum is divided
  // by their total. Under plans that keep gradients whole until they are reduced (DataParallel), only the last
  // part's backward reduces. Where a part begins in the batch is the caller's to say (BatchOffsetGuard, within `loss`):
  // otherwise all parts have the same random activations. `tokens_per_s` goes by what was counted. A step that counts
  // nothing on any rank has loss and norm 0 and changes nothing.
  // Cost:   one all-reduce of 8 bytes for the counts, beside what Step costs. Where gradients are compressed (Communication)
  //         the host reads the count, and a step that counts nothing copies what the method keeps.
  // Errors: InvalidArgument for fewer than one part, or a count that is no scalar.
  std::optional<StepMetrics> Step(int microbatches, absl::FunctionRef<DTensor(int)> count,
                                  std::function<LossSum(int)> loss, bool stop = false);

  // The same where the loss of a part is a plain mean over its rows, which the caller counts: `rows(i)`, over all
  // ranks, alike on every rank. Means weigh by rows, so the update is that of the whole batch only if every row
  // counts the same number of tokens; the first such step of several parts says so in a warning. `num_tokens` of the
  // record are rows. A part begins in the batch where the rows of the parts before it end, unless `mean` says otherwise
  // (BatchOffsetGuard).
  // Errors: InvalidArgument for fewer than one part, or a part of no rows.
  std::optional<StepMetrics> Step(int microbatches, absl::FunctionRef<int64_t(int)> rows,
                                  std::function<DTensor(int)> mean, bool stop = false);

  // A step of a model that is cut into stages: one update of the batch that `parts` are together, weighing by what each
  // counts, as above. Losses are those of the model's LossOf; the record is the same on every stage.
  // Cost:   one all-reduce of 8 bytes for the counts within each stage, beside PipelineExecutor::Run's.
  // Errors: those of PipelineExecutor::Run; InvalidArgument for another model's executor, and one that updates within the step.
  std::optional<StepMetrics> Step(PipelineExecutor& pipeline, std::vector<Microbatch> parts,
                                  bool stop = false);

  // This rank has waited so many seconds for the data of the step to come: for its record (StepMetrics::data_wait_s). Several
  // waits add up.
  void NoteDataWait(double seconds) { data_wait_s_ += seconds; }

  // The record of the last step, if it has not been given yet; callbacks see it too. After a training, and before
  // what needs to know that all went well, such as a checkpoint. A step after it does not skip its update for the
  // sake of one before it, as it does not in another trainer that goes on from that checkpoint.
  // Cost:   waits for the step.
  std::optional<StepMetrics> Flush();

  // The record that Step, Flush and callbacks gave last; nothing before the first.
  const std::optional<StepMetrics>& last_record() const { return last_record_; }

  // Runs the forward of the step that was recorded last again, with its random bits and without gradients, with the
  // parameters and every module's output checked. From a callback of its record, or after it: parameters are those
  // of the step if its norm was not finite.
  // Errors: DataLoss naming the step and the first parameter, otherwise the first module in order of execution,
  //         that is not finite on this rank. A rank that found nothing waits for the others, and is released
  //         (Aborted) when one of them throws; it returns if all is finite everywhere.
  //         FailedPrecondition if no step has been recorded.
  void FindNonFinite();

  // Whether any of the model's ranks says so; every rank asks at the same place, between steps.
  // Cost:   one all-reduce of 8 bytes, which the host waits for.
  bool AnyRank(bool is_so) { return records_.AnyRank(is_so); }

  Optimizer& optimizer() { return optimizer_; }

  // The last step that was made, 0 before the first. Set it to go on after a checkpoint: as behind a Flush, the next step does not
  // skip its update for the sake of one before it.
  int64_t step() const { return step_; }
  void set_step(int64_t step) {
    step_ = step;
    norm_before_ = DTensor();
  }

 private:
  // A step whose record is to come, or has: what makes its forward again, and the count of it.
  struct Replay {
    int64_t step = 0;
    std::function<void()> forward;
  };

  StepMetrics BeginStep();
  void BeginCompression();
  void KeepCompression(const DTensor& total);
  void ZeroGradients();
  // Forward and backward of each part; the sum of their losses, with no history.
  DTensor RunParts(int microbatches, absl::FunctionRef<DTensor(int)> part);
  // Backward of a loss, from the loss scale if there is one.
  void RunBackward(const DTensor& loss);
  DTensor TotalCount(int microbatches, absl::FunctionRef<DTensor(int)> count);
  // What comes after backward. `values` lacks the norm and the time.
  std::optional<StepMetrics> FinishStep(const StepMetrics& metrics, StepValues values, double begun,
                                        std::function<void()> forward);
  // `num_tokens`: undefined if the host knows it.
  DTensor UpdateParameters(double lr, const DTensor& num_tokens);
  std::optional<StepMetrics> TakeRecord();
  void CompareReplicasOf(int64_t step);
  std::optional<ReplicaDifference> CompareStages();

  Module& model_;
  MeshContext& context_;  // of the whole model
  TrainerOptions options_;
  Optimizer& optimizer_;
  int64_t step_ = 0;
  double data_wait_s_ = 0;  // of the step to come
  StepMetricsReduction records_;
  std::optional<StepMetrics> last_record_;
  Replay issued_;            // whose record is under way
  Replay recorded_;          // whose record came last
  bool compresses_ = false;  // gradients of the step that has begun
  // Of the step before, if this one's update looks at it: the squared norm of its gradient.
  DTensor norm_before_;
  bool is_gated_ = false;   // whether the update of the issued step looked at the one before
  bool was_finite_ = true;  // the norm of the step that was recorded last
};

}  // namespace weft

#endif  // WEFT_PARALLEL_TRAINER_H_
