// A GPT under a plan, with all that a training step needs: what memory.cc measures.

#ifndef WEFT_BENCHMARKS_MEMORY_TRAINING_H_
#define WEFT_BENCHMARKS_MEMORY_TRAINING_H_

#include <cstdint>
#include <functional>

#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "parallel/plan.h"
#include "runtime/launch/world.h"

namespace weft {

struct MemoryModel {
  int64_t layers = 6;
  int64_t dim = 384;  // a multiple of 64, the width of a head
  int64_t batch = 8;  // sequences of a step, over all ranks
  int64_t context = 256;
};

// In f32, updated by AdamW, on sequences of ones.
class MemoryTraining {
 public:
  MemoryTraining(World& world, const DeviceMesh& mesh, const Plan& plan, const MemoryModel& model);

  void Forward();
  // Of the last forward; returns when all gradients have come to rest.
  void GoBack();
  // Forward and backward of a microbatch that others follow, whose gradients add up with its own.
  void RunHeldMicrobatch();
  void Update();
  // All three; returns the seconds that they took.
  double Step();
  // Returns the seconds that it took to compare what ranks hold alike: parameters and the optimizer's state.
  double CheckReplicas();
  void LeaveForward() { loss_ = DTensor(); }

  Allocator& allocator() { return *context_->allocator(); }
  int64_t Live(MemoryKind kind) const { return context_->allocator()->by_kind()[kind].live; }
  int64_t Peak(MemoryKind kind) const { return context_->allocator()->by_kind()[kind].peak; }

  // Of all parameters, in `parts` parts of which a rank has one, as an allocator counts them.
  int64_t ParameterBytes(int64_t parts = 1);
  int64_t LargestParameterBytes();
  // Of the root's unit, or of one block's, whole.
  int64_t UnitBytes(bool root);

 private:
  Gpt model_;
  IntrusivePtr<MeshContext> context_;
  AdamW optimizer_;
  DTensor tokens_, loss_;
};

}  // namespace weft

#endif  // WEFT_BENCHMARKS_MEMORY_TRAINING_H_
