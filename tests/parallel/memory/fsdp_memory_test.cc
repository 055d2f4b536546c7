// Under FullyShard a parameter is whole only while something reads it, and a gradient until it is reduced, however late the
// transport is.

#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/optim/adamw.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/scheduler/late_world.h"
#include "tests/parallel/scheduler/watched_world.h"

namespace weft {
namespace {

// Sizes such that a whole matrix has as many bytes as no activation and no piece of a matrix: 28 features,
// sequences of 5.
constexpr GptConfig kConfig = {.vocabulary = 257, .context = 17, .layers = 4, .heads = 4, .dim = 28};

int64_t BytesOf(const Parameter& parameter) { return parameter.spec().shape.num_elements() * 8; }

// What copies of whole parameters take, gathered: as the allocator counts; and again what those are packed in that rest split
// over another dim than the first, whose pieces meet in a buffer as large.
int64_t GatheredBytes(const std::vector<Parameter*>& parameters) {
  int64_t bytes = 0;
  for (const Parameter* parameter : parameters) {
    const int64_t granules = (BytesOf(*parameter) + kAllocationGranule - 1) / kAllocationGranule;
    bytes +=
        granules * kAllocationGranule * (parameter->layouts().at_rest.shard_dim(/*axis=*/0) == 0 ? 1 : 2);
  }
  return bytes;
}

class FsdpMemoryTest : public testing::TestWithParam<int> {};

// The bound of docs/data_parallel.md, by how many units are gathered ahead.
TEST_P(FsdpMemoryTest, WholeParametersAreTheRootsAndThoseOfTheUnitsInUse) {
  const int prefetch = GetParam();
  RunRanks(2, [prefetch](World& plain_world) {
    LateWorld late_world(plain_world, std::chrono::milliseconds(5));
    WatchedWorld world(late_world);
    Gpt model(kConfig);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Plan plan = GptPlan(mesh, DataPlan::kFsdp, /*sequence_parallel=*/false);
    plan.set_scheduler({.prefetch = prefetch});
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});

    // Matrices are told by their size. Vectors cannot be (a piece of the qkv bias is as large as a norm's
    // weight), so they are left out.
    const std::vector<Parameter*> all = model.AllParameters();
    std::set<int64_t> matrices;
    const auto matrix_bytes = [&](const std::vector<Parameter*>& parameters) {
      int64_t bytes = 0;
      for (const Parameter* parameter : parameters) {
        const bool is_matrix = parameter->spec().shape.ndim() > 1 && parameter->name() != "bias";
        if (!is_matrix) continue;
        matrices.insert(BytesOf(*parameter));
        bytes += BytesOf(*parameter);
      }
      return bytes;
    };
    const int64_t inner = matrix_bytes(model.blocks[0]->AllParameters());
    const int64_t root = matrix_bytes(all) - 4 * inner;
    // The embeddings have odd numbers of rows and rest split over dim 1: their pieces meet in a buffer as large,
    // and are unpacked from there.
    const int64_t unpacked = BytesOf(model.wte.weight) + BytesOf(model.wpe);
    const int64_t bound = root + (1 + prefetch) * inner;

    AdamW optimizer(all, {});
    const Tensor ones = Tensor::FromValues<int32_t>({3, 5}, std::vector<int32_t>(15, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    world.watch().Watch(matrices);
    for (int step = 1; step <= 3; ++step) {
      world.watch().Restart();
      // The root's are here since the last update, and those of as many blocks as are gathered ahead.
      const int ahead = prefetch > 0 && step > 1 ? 3 + 2 + 4 * prefetch : 0;
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      // Forward gathers each of 4 x 4 + 3 matrices once, and the tape keeps none.
      EXPECT_EQ(world.watch().count(), 19 + 2 - ahead) << "step " << step;
      EXPECT_LE(world.watch().peak(), std::max(bound, root + unpacked)) << "step " << step;
      // Nothing but the root's own is whole now.
      const int64_t whole_root = world.watch().by_kind()[MemoryKind::kWholeParam].live;
      EXPECT_EQ(world.watch().live(), root) << "step " << step;
      // Backward gathers the blocks' again, and makes 19 gradients as large, of which the embeddings' are packed.
      // Whole are the head's, of the unit that is reduced and of the one that backward is in; at the end the root's all
      // and of the last unit.
      world.watch().Restart();
      world.watch().ResetPeak();
      Backward(loss);
      EXPECT_EQ(world.watch().count(), 16 + 19 + 2) << "step " << step;
      const int64_t head = BytesOf(*model.head->AllParameters()[0]);
      EXPECT_LE(world.watch().peak(MemoryKind::kWholeParam), bound) << "step " << step;
      EXPECT_LE(world.watch().peak(MemoryKind::kGrad), std::max(head + 2 * inner, root + inner))
          << "step " << step;
      EXPECT_LE(world.watch().peak(MemoryKind::kBucket), unpacked) << "step " << step;
      // The same of all parameters, vectors too.
      EXPECT_LE(world.watch().by_kind()[MemoryKind::kWholeParam].peak,
                whole_root + (1 + prefetch) * GatheredBytes(model.blocks[0]->AllParameters()))
          << "step " << step;
      for (const Parameter* parameter : all) parameter->grad().ToLocal();  // settled
      EXPECT_EQ(world.watch().live(), 0) << "step " << step;
      optimizer.Step(1e-3);
      optimizer.ZeroGrad();
      // Between steps: the root's, packed until they have come, and those of the first blocks.
      const int64_t first = prefetch * inner;
      EXPECT_LE(world.watch().live(), prefetch > 0 ? root + unpacked + first : 0) << "step " << step;
      EXPECT_LE(world.watch().peak(MemoryKind::kWholeParam), bound) << "step " << step;
      for (const Parameter* parameter : all) parameter->at_rest().ToLocal();  // settled
      EXPECT_EQ(world.watch().live(), prefetch > 0 ? root + first : 0) << "step " << step;
    }
    {
      const NoGradGuard no_grad(context->state());
      model.Loss(tokens, tokens);  // an evaluation leaves nothing
    }

    // The watch sees what a tape would keep that saves the copies.
    world.watch().Watch(matrices);
    std::vector<DTensor> kept;
    for (const Parameter* parameter : all) kept.push_back(parameter->Value());
    EXPECT_EQ(world.watch().live(), root + 4 * inner);
    EXPECT_GT(root + 4 * inner, bound);
  });
}

INSTANTIATE_TEST_SUITE_P(Prefetch, FsdpMemoryTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace weft
