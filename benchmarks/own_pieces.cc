// The step that //benchmarks:overlap trains, with collectives that fill their outputs from the rank's own pieces: what is
// left of a step's time when nobody is waited for and nothing is sent. One of the runs of overlap.sh, which gives the same
// model, batch and plan to train_gpt:
//
//   weft_run --nproc-per-node=2 bazel-bin/benchmarks/own_pieces --plan=FILE.json --steps=8
//
// Prints a JSON line per step: {"step": 3, "loss": 5.5, "step_ms": 812.0}. Losses mean nothing.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "benchmarks/own_pieces_world.h"
#include "runtime/base/flags.h"
#include "runtime/base/philox.h"
#include "runtime/data/token_file.h"
#include "runtime/launch/run_world.h"
#include "weft.h"

ABSL_FLAG(std::string, plan, "", "a file with the plan, over the axis dp");
ABSL_FLAG(int, steps, 8, "steps to train");
ABSL_FLAG(int, ranks, 2, "ranks that the launcher has started");
ABSL_FLAG(bool, own_pieces, true, "false: the ranks' real collectives");

namespace weft {
namespace {

constexpr int64_t kBatch = 16;
constexpr GptConfig kModel = {.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .dim = 384};

DTensor RandomTokens(const IntrusivePtr<MeshContext>& context, uint64_t stream) {
  std::vector<int32_t> tokens(kBatch * kModel.context);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(UniformAt({.seed = 1, .stream = stream}, i) *
                                     static_cast<float>(kModel.vocabulary));
  }
  return DTensor::Distribute(context, Tensor::FromValues<int32_t>({kBatch, kModel.context}, tokens),
                             Layout::Parse("[dp, -]", context->mesh()));
}

void Train(World& world, const Plan& plan, int steps) {
  Gpt model(kModel);
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrFormat("dp=%d", world.size()));
  const IntrusivePtr<MeshContext> context =
      Parallelize(model, world, mesh, plan, {.start_values = StartValues::kTrust});
  const DTensor tokens = RandomTokens(context, 1), targets = RandomTokens(context, 2);
  AdamW optimizer(model.AllParameters(), {});
  const auto record = [&](Trainer&, const StepMetrics& metrics) {
    if (world.rank() != 0) return;
    absl::PrintF("{\"step\": %d, \"loss\": %.4f, \"step_ms\": %.3f, \"comm_bytes\": %d}\n", metrics.step,
                 metrics.loss, metrics.step_ms, metrics.comm_bytes);
    std::fflush(stdout);
  };
  Trainer trainer(model, optimizer, {.callbacks = {{.on_metrics = record}}});
  for (int step = 0; step < steps; ++step) {
    trainer.Step(kBatch * kModel.context, [&] { return model.Loss(tokens, targets).Mean(); });
  }
  trainer.Flush();
}

int Run() {
  const Plan plan = Plan::FromJson(ReadTextFile(UserPath(absl::GetFlag(FLAGS_plan))));
  RunWorld(absl::GetFlag(FLAGS_ranks),
           [&](World& world) {
             if (!absl::GetFlag(FLAGS_own_pieces)) return Train(world, plan, absl::GetFlag(FLAGS_steps));
             OwnPiecesWorld alone(world);
             Train(alone, plan, absl::GetFlag(FLAGS_steps));
           },
           {.threads_per_rank = 1});
  return 0;
}

FlagsUsage Usage() {
  return {.summary = "Trains steps whose collectives fill their outputs from the rank's own pieces.",
          .groups = {{"Step", {"plan", "steps", "ranks", "own_pieces"}}},
          .examples = {"weft_run --nproc-per-node=2 bazel-bin/benchmarks/own_pieces --plan=plan.json"}};
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
