// A tiny GPT in training: what the trainer's tests step.

#ifndef WEFT_TESTS_PARALLEL_TRAINER_TRAINER_JOB_H_
#define WEFT_TESTS_PARALLEL_TRAINER_TRAINER_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "examples/gpt/gpt_plan.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"

namespace weft {

inline GptConfig Tiny() { return {.vocabulary = 31, .context = 6, .layers = 1, .heads = 2, .dim = 8}; }

inline constexpr WarmupCosine kSchedule = {.peak = 1e-2, .floor = 1e-3, .warmup_steps = 2, .total_steps = 6};
inline const AdamWOptions kAdamW = {.beta2 = 0.99, .weight_decay = 0.1};

// A tiny GPT on a mesh, and a batch for it.
struct Job {
  Job(World& world, const std::string& mesh_text, DataPlan data, double grad_clip = 1,
      int64_t check_replicas_every = 0)
      : mesh(DeviceMesh::Parse(mesh_text)), model(Tiny()) {
    const Plan plan = GptPlan(mesh, data, /*sequence_parallel=*/false);
    context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    std::vector<int32_t> values;
    for (int32_t i = 0; i < 24; ++i) values.push_back(i * 7 % 31);
    tokens =
        DTensor::Distribute(context, Tensor::FromValues<int32_t>({4, 6}, values), BatchLayout(mesh, plan));
    adamw.emplace(model.AllParameters(), kAdamW);
    trainer.emplace(
        model, *adamw,
        TrainerOptions{
            .schedule = kSchedule, .grad_clip = grad_clip, .check_replicas_every = check_replicas_every});
  }
  DTensor Loss() { return model.Loss(tokens, tokens).Mean(); }
  // One step and its own record.
  StepMetrics Step(bool stop = false) {
    return Step([this] { return Loss(); }, stop);
  }
  StepMetrics Step(const std::function<DTensor()>& loss, bool stop = false) {
    trainer->Step(/*num_tokens=*/24, loss, stop);
    return trainer->Flush().value();
  }

  DeviceMesh mesh;
  Gpt model;
  IntrusivePtr<MeshContext> context;
  DTensor tokens;
  std::optional<AdamW> adamw;
  std::optional<Trainer> trainer;
};

// Pieces, by name.
inline std::map<std::string, std::vector<double>> ValuesOf(Module& model) {
  std::map<std::string, std::vector<double>> values;
  for (const Parameter* parameter : model.AllParameters()) {
    values[parameter->path()] = parameter->at_rest().ToLocal().ToVector<double>();
  }
  return values;
}

inline std::map<std::string, std::vector<double>> ValuesOf(const Optimizer& optimizer) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, tensor] : optimizer.State()) values[name] = tensor.ToLocal().ToVector<double>();
  return values;
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_TRAINER_TRAINER_JOB_H_
