// DeepSpeed's configuration file, read as DeepSpeed reads it.

#ifndef WEFT_PARALLEL_DEEPSPEED_DEEPSPEED_CONFIG_H_
#define WEFT_PARALLEL_DEEPSPEED_DEEPSPEED_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// Everywhere below: nothing stands for a key that is not there, and for the value "auto".

struct DeepSpeedFp16 {
  std::optional<bool> enabled = {};
  std::optional<double> loss_scale = {};  // 0: dynamic; otherwise fixed, and the others count for nothing
  std::optional<int64_t> initial_scale_power = {};  // the scale begins at 2 to it
  std::optional<int64_t> loss_scale_window = {};    // steps
  std::optional<int64_t> hysteresis = {};
  std::optional<double> min_loss_scale = {};

  bool operator==(const DeepSpeedFp16&) const = default;
};

struct DeepSpeedOffload {
  std::string device = "none";  // or cpu, nvme
  std::optional<std::string> nvme_path = {};

  bool operator==(const DeepSpeedOffload&) const = default;
};

struct DeepSpeedZero {
  std::optional<int64_t> stage = {};  // 0 to 3
  std::optional<bool> overlap_comm = {};
  std::optional<int64_t> reduce_bucket_size = {};  // elements
  DeepSpeedOffload offload_optimizer = {};
  DeepSpeedOffload offload_param = {};

  bool operator==(const DeepSpeedZero&) const = default;
};

struct DeepSpeedOptimizer {
  std::string type;  // Adam, AdamW, Lion or SGD
  std::optional<double> lr = {};
  std::optional<std::vector<double>> betas = {};  // two
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};
  std::optional<bool> nesterov = {};
  // Which of them are "auto", to be told from those that are left out, which have DeepSpeed's defaults.
  std::vector<std::string> auto_params = {};

  bool operator==(const DeepSpeedOptimizer&) const = default;
};

struct DeepSpeedScheduler {
  std::string type;  // WarmupLR, WarmupDecayLR or WarmupCosineLR; with a warm-up from 0
  std::optional<std::string> warmup_type = {};  // linear or log; left out it is log, as there
  std::optional<int64_t> total_num_steps = {};
  std::optional<int64_t> warmup_num_steps = {};
  std::optional<double> warmup_max_lr = {};
  std::optional<double> cos_min_ratio = {};
  bool auto_warmup =
      false;  // warmup_num_steps is "auto", to be told from one that is left out, which is 1000 there

  bool operator==(const DeepSpeedScheduler&) const = default;
};

// What Weft has of DeepSpeed's configuration. A value.
struct DeepSpeedConfig {
  std::optional<int64_t> train_batch_size = {};
  std::optional<int64_t> train_micro_batch_size_per_gpu = {};
  std::optional<int64_t> gradient_accumulation_steps = {};
  std::optional<double> gradient_clipping = {};  // 0: none
  // gradient_clipping is "auto", to be told from one that is left out, which is 0 there.
  bool auto_clipping = false;
  std::optional<int64_t> steps_per_print = {};
  std::optional<bool> bf16 = {};  // enabled
  std::optional<DeepSpeedFp16> fp16 = {};
  std::optional<DeepSpeedZero> zero_optimization = {};
  std::optional<DeepSpeedOptimizer> optimizer = {};
  std::optional<DeepSpeedScheduler> scheduler = {};

  // Reads the text of a file.
  // Errors: InvalidArgument that names the key with its path ("zero_optimization.stage"): one that is none of those
  //         above (names the nearest), a value of another type or outside its range (what was given, what was expected), a
  //         value that says otherwise than Weft does, with what that is; and a key that stands twice in one object, without its
  //         path.
  static DeepSpeedConfig FromJson(absl::string_view text);

  bool operator==(const DeepSpeedConfig&) const = default;
};

// The keys that a file is known by as one of DeepSpeed's.
std::vector<std::string> DeepSpeedKeys();

// A step: so many samples over all ranks, in so many microbatches one after another.
struct DeepSpeedBatch {
  std::optional<int64_t> batch = {};  // nothing: the file does not say
  std::optional<int64_t> microbatches = {};

  bool operator==(const DeepSpeedBatch&) const = default;
};

// The batch that the file's three numbers mean on `data_parallel` ranks that have rows of their own:
//   train_batch_size == train_micro_batch_size_per_gpu * gradient_accumulation_steps * data_parallel.
// Of two the third follows; train_batch_size or train_micro_batch_size_per_gpu alone accumulates once.
// Errors: InvalidArgument that names the three and the number of ranks, if they do not agree or do not divide.
DeepSpeedBatch ResolveDeepSpeedBatch(const DeepSpeedConfig& config, int64_t data_parallel);

}  // namespace weft

#endif  // WEFT_PARALLEL_DEEPSPEED_DEEPSPEED_CONFIG_H_
