#ifndef WEFT_EXAMPLES_GPT_GPT_FLAGS_H_
#define WEFT_EXAMPLES_GPT_GPT_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/schedule.h"
#include "examples/gpt/gpt_plan.h"
#include "examples/gpt/gpt_plan_flags.h"
#include "mesh/device_mesh.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/plan.h"
#include "runtime/base/flags.h"
#include "runtime/data/tokenizer.h"
#include "runtime/device/device_backend.h"
#include "runtime/launch/backend.h"

namespace weft {

// Everything that train_gpt's flags say, checked against each other.
struct GptRun {
  DeviceMesh mesh;
  bool allow_spares = false;  // the mesh follows the number of ranks
  Plan plan;
  std::vector<NamedPlan> plans;                // `plan`, and those that take less memory, as PlansFromFlags
  std::vector<std::string> unused_flags = {};  // of one of several meshes, as UnusedFlags
  GptConfig model;
  std::string schedule_lr = "cosine";  // MakeGptSchedule: the shape of what `schedule` gives the numbers for
  WarmupCosine schedule;
  std::string optimizer = "adamw";  // MakeGptOptimizer
  AdamWOptions adamw;               // its betas and decay, and the others'
  bool nesterov = true;             // sgd's momentum
  double eps = 0;                   // of those with second moments of their own; 0: the optimizer's own
  double grad_clip = 1;
  DType dtype = DType::kF32;                   // at rest
  DType compute_dtype = DType::kF32;           // in forward and backward
  std::optional<LossScaleOptions> loss_scale;  // nothing: the loss is not scaled
  Backend backend = Backend::kAuto;
  DeviceType device = DeviceType::kCpu;
  DeviceOptions device_options = {};
  int threads_per_rank = 0;  // 0: cores divided among the ranks
  int64_t batch = 12;        // global, sequences: --batch, or as much of it as these ranks have
  int64_t asked_batch = 12;  // --batch; evaluations have as many sequences on any mesh
  int64_t microbatches = 1;
  std::optional<PipelineSchedule> pipeline_schedule;  // if the mesh has an axis pp
  bool measures_segments = false;                     // stages are balanced by measured costs
  int64_t steps = 2000;
  uint64_t seed = 1337;
  bool shuffle_epochs = false;  // --shuffle=epoch; otherwise windows are drawn with replacement
  int data_threads = 1;         // that read ahead; 0: none
  double val_fraction = 0.1;
  int64_t eval_every = 250;   // steps; 0: never
  int64_t eval_batches = 20;  // batches an evaluation
  int64_t sample = 500;       // tokens; 0: none
  int64_t log_every = 10;     // steps
  bool json = false;
  std::string save;  // files; empty: none
  std::string resume;
  std::string trace;
  bool check_issue_order = false;
  bool deterministic = false;
  int64_t check_replicas = 0;  // steps; 0: never
  bool print_plan = false;
  bool print_schedule = false;
};

// The face of the program: flags by group, two examples.
FlagsUsage TrainGptUsage();

// The file of --resume, or empty.
std::string ResumePath();

// The text to train on and its tokenizer, as the flags name them.
struct GptText {
  std::string path;
  std::string text;
  std::unique_ptr<Tokenizer> tokenizer;
};
GptText ReadGptText();

// Reads the flags. `tokenizer_vocabulary` is what --vocab_size=0 stands for.
// Errors: InvalidArgument naming the flag, what was given and what was expected.
GptRun GptRunFromFlags(int64_t tokenizer_vocabulary);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_FLAGS_H_
