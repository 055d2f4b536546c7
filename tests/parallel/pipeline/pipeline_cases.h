// Training steps of a GPT in stages, beside the same step on one device.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_PIPELINE_CASES_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_PIPELINE_CASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/parameter.h"
#include "parallel/pipeline/executor.h"
#include "parallel/style.h"
#include "tests/parallel/pipeline/rank_launcher.h"

namespace weft {

struct PipelineCase {
  std::string schedule;
  std::string mesh;  // the first axis is pp; dp and tp beside it, or replica and shard (HSDP)
  bool fully_sharded = false;
  bool sequence_parallel = false;
  bool tied_head = false;
  bool declares_tie = false;  // a tied head is a layer of its own whose weight says so (Parameter::TieTo)
  std::vector<int64_t> rows = {2, 2, 2, 2};  // of each microbatch
  int whole_stages = 3;
  std::optional<Style> recompute = std::nullopt;  // of the blocks
  int layers = 8;
  int runs = 1;  // of the same step one after another; gradients are compared with as many times those of one
  std::optional<Style> data = std::nullopt;  // of the root, on a mesh with dp, in place of DataParallel("dp")
  // Of the tied table, by the head's name if that declares the tie; on one device, too, which then makes as many runs.
  std::function<void(World& world, Parameter& table)> hook = nullptr;

  std::string ToString() const;
};

// A mistake to plant in what a rank runs.
struct PipelineMistake {
  std::function<void(World& world, std::vector<Microbatch>& parts)> in_parts = nullptr;
  std::function<std::shared_ptr<StageData>(const std::shared_ptr<StageData>& data)> in_data = nullptr;
};

// One line for whatever differs from one device by more than kF64Tolerance (tests/parallel/training_run.h): the loss, the norm
// of all gradients, a parameter's gradient; and for ranks that have different gradients of the same parameter.
// `launch`: starts the ranks of the stages; the one device is a CPU.
std::vector<std::string> DifferencesFromOneDevice(const PipelineCase& test,
                                                  const PipelineMistake& mistake = {},
                                                  const RankLauncher& launch = OnCpus);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_PIPELINE_CASES_H_
