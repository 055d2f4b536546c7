// How often a gradient is copied on its way to rest: each buffer as large as a matrix is one that somebody made.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/optim/adamw.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/scheduler/watched_world.h"

namespace weft {
namespace {

// As in fsdp_memory_test: a whole matrix has as many bytes as no activation, and as no piece of a matrix. Rows of the
// embeddings divide over two ranks.
constexpr GptConfig kConfig = {.vocabulary = 258, .context = 18, .layers = 2, .heads = 4, .dim = 28};

bool IsMatrix(const Parameter& parameter) {
  return parameter.spec().shape.ndim() > 1 && parameter.name() != "bias";
}

// Of each size in bytes: matrices of the model, and buffers that backward makes in a step of one microbatch or more.
struct Copies {
  std::map<int64_t, int64_t> matrices;
  std::map<int64_t, int64_t> made;
};

Copies CopiesUnder(DataPlan data_plan, int microbatches, double bucket_mb) {
  Copies copies;
  RunRanks(2, [&](World& plain) {
    WatchedWorld world(plain);
    Gpt model(kConfig);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    // Kept until the update, so that backward gathers nothing.
    Plan plan = GptPlan(mesh, data_plan, /*sequence_parallel=*/false, {.reshard = Reshard::kNever});
    plan.set_scheduler({.bucket_mb = bucket_mb});
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const std::vector<Parameter*> all = model.AllParameters();
    std::set<int64_t> sizes;
    Copies mine;
    for (const Parameter* parameter : all) {
      if (!IsMatrix(*parameter)) continue;
      const int64_t num_bytes = parameter->spec().shape.num_elements() * 8;
      sizes.insert(num_bytes);
      mine.matrices[num_bytes] += microbatches;
    }
    AdamW optimizer(all, {});
    const Tensor ones = Tensor::FromValues<int32_t>({2, 5}, std::vector<int32_t>(10, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    world.watch().Watch(sizes);
    for (int step = 1; step <= 2; ++step) {  // the first learns the order
      mine.made.clear();
      for (int i = 0; i < microbatches; ++i) {
        std::optional<NoSync> no_sync;
        if (i + 1 < microbatches) no_sync.emplace(context->state());
        const DTensor loss = model.Loss(tokens, tokens).Mean();
        world.watch().Restart();
        Backward(loss);
        for (const Parameter* parameter : all) {
          if (parameter->grad().defined()) parameter->grad().ToLocal();  // settled
        }
        for (const auto& [num_bytes, count] : world.watch().counts()) mine.made[num_bytes] += count;
      }
      optimizer.Step(1e-3);
      optimizer.ZeroGrad();
    }
    if (world.rank() == 0) copies = mine;
  });
  return copies;
}

// A gradient is made once, by the op that delivers it, and is reduced from there: in place, or to this rank's part. What
// is no product's weight may be a view of something else (positions): that one is reduced into memory of its own. The
// gradient that completes a bucket is no exception: where a bucket has one, each does.
TEST(GradientCopiesTest, WeightsOfProductsAreNeverCopied) {
  for (const DataPlan plan : {DataPlan::kDdp, DataPlan::kZero1, DataPlan::kZero2, DataPlan::kFsdp}) {
    for (const auto& [microbatches, bucket_mb] :
         {std::pair(1, 25.0), std::pair(3, 25.0), std::pair(1, 1e-6)}) {
      Copies copies = CopiesUnder(plan, microbatches, bucket_mb);
      const int64_t positions = kConfig.context * kConfig.dim * 8;
      EXPECT_EQ(copies.matrices[positions], microbatches);
      EXPECT_LE(copies.made[positions], 2 * microbatches);
      copies.made[positions] = copies.matrices[positions];
      EXPECT_EQ(copies.made, copies.matrices)
          << DataPlanName(plan) << ", " << microbatches << " microbatches, buckets of " << bucket_mb << " MB";
    }
  }
}

}  // namespace
}  // namespace weft
