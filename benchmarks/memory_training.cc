#include "benchmarks/memory_training.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "parallel/parallelize.h"
#include "parallel/replicas.h"
#include "runtime/device/allocator.h"

namespace weft {
namespace {

constexpr int64_t kItem = 4;
constexpr int64_t kVocabulary = 256;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

MemoryTraining::MemoryTraining(World& world, const DeviceMesh& mesh, const Plan& plan,
                               const MemoryModel& model)
    : model_({.vocabulary = kVocabulary,
              .context = model.context,
              .layers = model.layers,
              .heads = model.dim / 64,
              .dim = model.dim}),
      context_(Parallelize(model_, world, mesh, plan, {})),
      optimizer_(model_.AllParameters(), AdamWOptions()) {
  const Shape shape = {model.batch, model.context};
  const Tensor ones = Tensor::FromValues<int32_t>(shape, std::vector<int32_t>(shape.num_elements(), 1));
  Layout rows(shape.ndim(), mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) rows = rows.WithShard(axis, 0);
  tokens_ = DTensor::Distribute(context_, ones, rows);
}

void MemoryTraining::Forward() { loss_ = model_.Loss(tokens_, tokens_).Mean(); }

void MemoryTraining::GoBack() {
  Backward(std::exchange(loss_, DTensor()));
  for (const Parameter* parameter : optimizer_.parameters()) {
    if (parameter->grad().defined()) parameter->grad().ToLocal();  // settled
  }
}

void MemoryTraining::RunHeldMicrobatch() {
  const NoSync no_sync(context_->state());
  Forward();
  GoBack();
}

void MemoryTraining::Update() {
  optimizer_.Step(1e-4);
  optimizer_.ZeroGrad();
  for (const Parameter* parameter : optimizer_.parameters()) parameter->at_rest().ToLocal();
}

double MemoryTraining::Step() {
  const double begun = Now();
  Forward();
  GoBack();
  Update();
  return Now() - begun;
}

double MemoryTraining::CheckReplicas() {
  const double begun = Now();
  std::vector<NamedValue> values;
  for (const Parameter* parameter : optimizer_.parameters()) {
    values.push_back({parameter->path(), parameter->at_rest()});
  }
  for (const auto& [name, state] : optimizer_.State()) values.push_back({name, state});
  WEFT_CHECK(!CompareReplicas(*context_, values), "replicas differ");
  return Now() - begun;
}

int64_t MemoryTraining::ParameterBytes(int64_t parts) {
  int64_t bytes = 0;
  for (const Parameter* parameter : model_.RegisteredParameters()) {
    bytes += RoundUpToGranule(parameter->spec().shape.num_elements() * kItem / parts);
  }
  return bytes;
}

int64_t MemoryTraining::LargestParameterBytes() {
  int64_t bytes = 0;
  for (const Parameter* parameter : model_.RegisteredParameters()) {
    bytes = std::max(bytes, RoundUpToGranule(parameter->spec().shape.num_elements() * kItem));
  }
  return bytes;
}

int64_t MemoryTraining::UnitBytes(bool root) {
  int64_t bytes = 0;
  for (const Parameter* parameter : model_.RegisteredParameters()) {
    const bool is_here = root ? !absl::StartsWith(parameter->path(), "blocks.")
                              : absl::StartsWith(parameter->path(), "blocks.0.");
    if (is_here) bytes += RoundUpToGranule(parameter->spec().shape.num_elements() * kItem);
  }
  return bytes;
}

}  // namespace weft
