// What a training step was, and the one reduction that tells every rank.

#ifndef WEFT_PARALLEL_STEP_METRICS_H_
#define WEFT_PARALLEL_STEP_METRICS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "dtensor/dtensor.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/host_copy.h"

namespace weft {

// The record of one step, the same on every rank but for its own times (step_ms, tokens_per_s).
struct StepMetrics {
  int64_t step = 0;      // that it belongs to: 1, 2, ...: attempts, whether they updated or not
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping
  // Whether loss and gradient norm are finite. A step whose norm is not changes nothing, nor does the next.
  bool finite = true;
  bool updated = true;     // whether the step changed the parameters
  double loss_scale = 0;   // that the step has left for the next; 0: there is none
  int64_t num_tokens = 0;  // that the step counted, over all ranks
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
  // How long the program had waited for the step's data (Trainer::NoteDataWait), the worst rank's. It is no part of step_ms.
  double data_wait_s = 0;
  bool stop = false;  // some rank was asked to stop

  bool operator==(const StepMetrics&) const = default;
};

// What a rank knows of its step when the update has been issued.
struct StepValues {
  // Scalars with no history, whose elements the host need not have: the loss, in any layout; the squared norm of the
  // gradient, replicated; how many tokens count, replicated (undefined: StepMetrics::num_tokens says it); the loss scale,
  // replicated (undefined: there is none).
  DTensor loss = {};
  DTensor norm_squared = {};
  DTensor num_tokens = {};
  DTensor loss_scale = {};
  double seconds = 0;      // that the step took here
  double data_wait_s = 0;  // for its data, before it
  bool stop = false;       // this rank's wish
};

// Makes the records of a mesh's steps, one under way at a time: a step's values go into one asynchronous all-reduce,
// whose result is read when the next step has been issued.
//
// Threads: the rank's.
class StepMetricsReduction {
 public:
  // Every rank of the mesh makes one at the same place.
  explicit StepMetricsReduction(MeshContext& context);

  // Begins to reduce. `known`: what all ranks know alike: step, lr, num_tokens.
  // Cost: one all-reduce of 9 f64, and two per rank, over the mesh, under purpose `metric`. The host waits for
  //       nothing.
  void Begin(const StepMetrics& known, const StepValues& values);
  bool is_pending() const { return pending_.has_value(); }

  // On a device: what has been reduced starts on its way to the host, behind what the device has been given so far.
  // A step calls it when its forward has been issued, so that Take waits for no more than that.
  void Fetch();

  // The record that Begin was called for. `updated` is whether anything was counted, or the host knows.
  // Cost:   waits until it is there.
  // Errors: those of the collective; World::ThrowIfCutOff, as the values may come of what was cut off.
  StepMetrics Take();

  // Whether any rank of the mesh says so; every rank asks at the same place.
  // Cost: one all-reduce of 8 bytes, under purpose `metric`, which the host waits for.
  bool AnyRank(bool is_so);

  Communicator& group() { return *group_; }

 private:
  struct Pending {
    StepMetrics known;
    Tensor sums;
    Work work;
    bool is_fetched = false;
  };

  MeshContext& context_;
  std::shared_ptr<Communicator> group_;
  std::optional<Pending> pending_;
  HostCopy host_copy_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_STEP_METRICS_H_
