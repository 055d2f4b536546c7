// Models, plans and values for tests of checkpoints.

#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_STATE_STATE_CASES_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_STATE_STATE_CASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/state/state.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/weight_average.h"
#include "mesh/shard_math.h"
#include "parallel/plan.h"
#include "runtime/launch/world.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// How a model is spread.
struct SpreadCase {
  std::string name;
  std::string mesh;
  Plan plan;

  int num_ranks() const;
};

// One rank, replicas, ZeRO-1 to -3, uneven pieces, tensor parallelism, stages: of which several have a tied table.
const std::vector<SpreadCase>& SpreadCases();

// A small GPT with a tied head, its optimizer, an average of its weights and a loss scale: 4 parts.
struct TestRun {
  // `dtype`: of parameters at rest.
  TestRun(World& world, const SpreadCase& spread, DType dtype = DType::kF32);

  Gpt model;
  IntrusivePtr<MeshContext> context;
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<WeightAverage> average;
  std::unique_ptr<LossScale> loss_scale;
  State state;
};

// These tensors, by name.
std::shared_ptr<StatePart> TensorsPart(std::vector<std::pair<std::string, DTensor>> tensors);

// Runs `function` on rank 0, while the other ranks wait for it. Every rank calls it.
void OnFirst(World& world, const std::function<void()>& function);

// Two tensors on dp=`num_ranks`, one of them split.
State SmallState(World& world, int num_ranks);

// Bytes of a box of the tensor `name`, row-major, which follow from (name, seed, index of the element in the whole): any
// bits, so those of nan and of -0, too.
std::vector<char> BoxBytes(const std::string& name, uint64_t seed, DType dtype, const ShardBox& box);

// Sets every tensor of the state to BoxBytes; how many bytes of this rank's pieces are not BoxBytes.
void FillTensorOf(const StateTensor& tensor, uint64_t seed);
void FillState(const State& state, uint64_t seed);
int64_t CountWrongBytes(const State& state, uint64_t seed);

// Bytes of all tensors of the state of one rank: each element once.
int64_t WholeBytes(DType dtype = DType::kF32);

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_STATE_STATE_CASES_H_
