#ifndef WEFT_PARALLEL_TRAINER_H_
#define WEFT_PARALLEL_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "dtensor/functions/loss.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/schedule.h"
#include "runtime/comm/communicator.h"

namespace weft {

// What one step was, the same on every rank.
struct StepMetrics {
  int64_t step = 0;      // 1, 2, ...: attempts, whether they updated or not
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
  double comm_fraction = 0;  // of the step's time in which some collective ran, the ranks' mean; at most 1
  // Of the step's time that a rank's thread spent in collectives, or in waiting for those that others run for
  // it, instead of computing: the ranks' mean. Of it, until all members had entered: waiting for peers.
  double exposed_fraction = 0;
  double waiting_fraction = 0;
  int64_t comm_bytes = 0;  // the ledger's, summed over ranks; purpose `metric` is not counted
  int64_t peak_bytes = 0;  // of tensor memory, the worst rank's
  bool stop = false;       // some rank was asked to stop

  bool operator==(const StepMetrics&) const = default;
};

class Trainer;

// What a program does beside the steps. Each rank calls its own, in the order of the options' list; those that
// communicate (an evaluation, a checkpoint) are there on every rank. Either may be empty.
struct TrainerCallback {
  // A step has ended: parameters and the optimizer's state are those after its update. To evaluate and to save.
  std::function<void(Trainer& trainer, int64_t step)> on_step_end = nullptr;
  // What a step was. To log.
  std::function<void(Trainer& trainer, const StepMetrics& metrics)> on_metrics = nullptr;
};

struct TrainerOptions {
  Schedule schedule = WarmupCosine();
  double grad_clip = 1;  // largest global gradient norm; 0: not clipped
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
  // Errors: InvalidArgument without a schedule.
  Trainer(Module& model, Optimizer& optimizer, TrainerOptions options = {});

  // One step: `loss` runs forward and returns the mean loss; then backward, global norm, clipping and the
  // update. Nothing is read back to the host between forward and update; a norm that is not finite skips the
  // update. `num_tokens` is the global count, for the rate. `stop` is this rank's wish to stop.
  // Cost:   besides the model's collectives, two small all-reduces over the mesh for the metrics.
  StepMetrics Step(int64_t num_tokens, absl::FunctionRef<DTensor()> loss, bool stop = false);

  // The same of a batch in `microbatches` parts, i from 0 on, whose gradients add up: one update, the one that
  // the whole batch would make, whatever each part counts. `count(i)` is how many positions part i counts, of
  // the targets alone (CountTargets): all counts come before the first forward, and every part's sum is divided
  // by their total. Under plans that keep gradients whole until they are reduced (DataParallel), only the last
  // part's backward reduces. A part's random activations and its place in the batch are the caller's
  // (BatchOffsetGuard). `tokens_per_s` goes by what was counted.
  // Cost:   one all-reduce of 8 bytes for the counts, beside what Step costs.
  // Errors: InvalidArgument for fewer than one part, or a count that is no scalar.
  StepMetrics Step(int microbatches, absl::FunctionRef<DTensor(int)> count,
                   absl::FunctionRef<LossSum(int)> loss, bool stop = false);

  // Runs `loss` again, without gradients, with the parameters and every module's output checked.
  // Errors: DataLoss naming the step and the first parameter, else the first module in order of execution,
  //         that is not finite on this rank. A rank that found nothing waits for the others, and is released
  //         (Aborted) when one of them throws; it returns if all is finite everywhere.
  void FindNonFinite(absl::FunctionRef<DTensor()> loss);

  Optimizer& optimizer() { return optimizer_; }

  // The last step that was made, 0 before the first. Set it to go on after a checkpoint.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

 private:
  StepMetrics BeginStep();
  DTensor TotalCount(int microbatches, absl::FunctionRef<DTensor(int)> count);
  // What comes after backward: `value` is the loss of the step, with no history; `tokens` are counted.
  void FinishStep(const DTensor& value, double begun, absl::FunctionRef<double()> tokens, bool stop,
                  StepMetrics* metrics);
  void ReduceOverRanks(StepMetrics* metrics, double seconds, bool stop);

  MeshContext& context_;
  TrainerOptions options_;
  Optimizer& optimizer_;
  int64_t step_ = 0;
  std::shared_ptr<Communicator> metrics_group_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_TRAINER_H_
