// Training with delayed weights: what schedules that update within the step come to, on one device that keeps all versions.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_DELAYED_WEIGHTS_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_DELAYED_WEIGHTS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/styles.h"
#include "tests/parallel/pipeline/rank_launcher.h"
#include "tests/parallel/training_run.h"

namespace weft {

// What every stage is updated by. With a momentum, one update of two gradients is none of each.
inline constexpr double kDelayedRate = 0.05;
inline constexpr double kDelayedMomentum = 0.5;

// What is trained: Products, one layer a stage.
struct DelayedJob {
  double dropout = 0;
  bool has_uneven_rows = false;
  bool splits_rows = false;  // of what stages hand on, along axis tp: sequence parallel

  // Some that two ranks do not divide, and one that leaves a rank without any.
  std::vector<Microbatch> Parts(const IntrusivePtr<MeshContext>& context, int count) const;
};

// How many updates have made the weights that F of each stage and microbatch reads, by the lists alone: under
// WeightVersions::kNewest as many OPT as stand before it, under kPrevious one less than its group.
std::map<std::pair<int, int>, int> VersionsRead(const PipelineSchedule& schedule);

// The schedule's step on one device, each microbatch with the weights that VersionsRead says: the loss, the values before it
// and, as gradients, what it changes of them. Also of lists with mistakes: a version that there is not is the nearest one.
TrainingResult WithDelayedWeights(const PipelineSchedule& schedule, const DelayedJob& job = {});

// The same by the executor, on ranks of "pp=..." with the axes `beside`, ", dp=2" or ", tp=2": `data` is what axis dp does, and
// axis tp splits the products' columns, or their rows where that job's activations lie so. Expects that no version is left behind.
TrainingResult InStages(const PipelineSchedule& schedule, const std::string& beside,
                        const DelayedJob& job = {}, const Style& data = FullyShard("dp"),
                        const RankLauncher& launch = OnCpus);

// The same of what has run: `before` and `after` are whole weights by path.
TrainingResult DelayedResult(double loss, const FullTensors& before, const FullTensors& after);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_DELAYED_WEIGHTS_H_
