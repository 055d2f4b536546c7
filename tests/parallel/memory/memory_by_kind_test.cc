// What a rank's memory is for, under each plan of data parallelism: ZeRO's closed forms.
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 5.

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/mlp.h"
#include "dtensor/optim/adamw.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"

namespace weft {
namespace {

// Of f64, and every parameter in four pieces fills granules: so bytes are exact.
constexpr GptConfig kConfig = {.vocabulary = 64, .context = 16, .layers = 2, .heads = 4, .dim = 32};
constexpr int64_t kItem = 8;

struct MemoryCase {
  std::string plan;
  std::string mesh;
  // The parts of all parameters' bytes that a rank holds, as 1 / part.
  int64_t param = 1;
  int64_t held = 1;  // gradients, between microbatches
  int64_t grad = 1;  // gradients at rest
  int64_t state = 1;
};
std::ostream& operator<<(std::ostream& out, const MemoryCase& c) { return out << c.plan << " on " << c.mesh; }

class MemoryByKindTest : public testing::TestWithParam<MemoryCase> {};

TEST_P(MemoryByKindTest, IsTheClosedForm) {
  const MemoryCase& c = GetParam();
  const DeviceMesh mesh = DeviceMesh::Parse(c.mesh);
  RunRanks(mesh.num_ranks(), [&](World& world) {
    Gpt model(kConfig);
    Plan plan = DataPlanNamed(c.plan, mesh);
    plan.set_scheduler({.prefetch = 0});
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const std::vector<Parameter*> parameters = model.AllParameters();
    int64_t all = 0;
    int64_t of_block = 0;
    for (const Parameter* parameter : parameters) all += parameter->spec().shape.num_elements() * kItem;
    for (const Parameter* parameter : model.blocks[0]->AllParameters()) {
      of_block += parameter->spec().shape.num_elements() * kItem;
    }
    AdamW optimizer(parameters, {});
    const Tensor ones = Tensor::FromValues<int32_t>({4, 8}, std::vector<int32_t>(32, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, Layout(2, mesh.num_axes()));
    Allocator& allocator = *context->allocator();
    const auto live = [&](MemoryKind kind) { return allocator.by_kind()[kind].live; };
    for (int step = 1; step <= 3; ++step) {
      allocator.ResetPeak();
      EXPECT_EQ(live(MemoryKind::kParam), all / c.param) << "step " << step;
      EXPECT_EQ(live(MemoryKind::kState), 2 * all / c.state + kAllocationGranule) << "step " << step;
      EXPECT_EQ(live(MemoryKind::kGrad), 0) << "step " << step;
      EXPECT_EQ(live(MemoryKind::kWholeParam), 0) << "step " << step;
      EXPECT_EQ(live(MemoryKind::kSaved), 0) << "step " << step;
      {
        const NoSync no_sync(context->state());
        const DTensor loss = model.Loss(tokens, tokens).Mean();
        EXPECT_GT(live(MemoryKind::kSaved), 0);
        Backward(loss);
      }
      if (c.held > 1) {
        for (const Parameter* parameter : parameters) parameter->grad().ToLocal();  // settled
      }
      EXPECT_EQ(live(MemoryKind::kGrad), all / c.held) << "step " << step;
      Backward(model.Loss(tokens, tokens).Mean());
      for (const Parameter* parameter : parameters) parameter->grad().ToLocal();  // settled
      EXPECT_EQ(live(MemoryKind::kGrad), all / c.grad) << "step " << step;
      EXPECT_EQ(live(MemoryKind::kBucket), 0) << "step " << step;
      EXPECT_EQ(live(MemoryKind::kSaved), 0) << "step " << step;
      // Sharded at rest: the root unit's, one inner unit's, and what gathers of the larger of them pack.
      const int64_t root = all - kConfig.layers * of_block;
      const int64_t whole = c.param == 1 ? 0 : root + of_block + std::max(root, of_block);
      EXPECT_LE(allocator.by_kind()[MemoryKind::kWholeParam].peak, whole) << "step " << step;
      optimizer.Step(1e-3);
      optimizer.ZeroGrad();
      for (const Parameter* parameter : parameters) parameter->at_rest().ToLocal();  // settled
    }
    const AllocatorStats stats = allocator.stats();
    int64_t sum = 0;
    for (const MemoryKind kind : kMemoryKinds) sum += live(kind);
    EXPECT_EQ(sum, stats.live_bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, MemoryByKindTest,
                         testing::Values(MemoryCase{"ddp", "dp=4", 1, 1, 1, 1},
                                         MemoryCase{"zero1", "dp=4", 1, 1, 4, 4},
                                         MemoryCase{"zero2", "dp=4", 1, 4, 4, 4},
                                         MemoryCase{"fsdp", "dp=4", 4, 4, 4, 4},
                                         MemoryCase{"hsdp", "replica=2,shard=2", 2, 2, 2, 2}));

// What a forward leaves is what backward reads, and the result.
TEST(SavedMemoryTest, OfAnMlpIsItsActivations) {
  constexpr int64_t kRows = 8, kDim = 16, kHidden = 64;
  RunRanks(2, [&](World& world) {
    Module root;
    Mlp mlp(&root, "mlp", kDim, kHidden);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto context =
        Parallelize(root, world, mesh, Plan({{"", DataParallel("dp")}}), {.dtype = DType::kF64});
    const Layout rows = Layout(2, 1).WithShard(0, 0);
    const DTensor x = Full(context, DType::kF64, {kRows, kDim}, 0.5, rows);
    Allocator& allocator = *context->allocator();
    const auto saved = [&] { return allocator.by_kind()[MemoryKind::kSaved].live; };
    {
      const DTensor y = mlp(x);
      // Before and after gelu, and the output: of half of the rows.
      EXPECT_EQ(saved(), kRows / 2 * (2 * kHidden + kDim) * kItem);
    }
    EXPECT_EQ(saved(), 0);
    const NoGradGuard no_grad(context->state());
    const DTensor y = mlp(x);
    EXPECT_EQ(saved(), 0);
  });
}

class Chain : public Module {
 public:
  Linear first{this, "layers.0", 64, 64, {.bias = false}};
  Linear second{this, "layers.1", 64, 64, {.bias = false}};

 protected:
  DTensor Forward(const DTensor& x) override { return second(first(x)); }
};

// The tape keeps no casts of weights that are gathered for their use, else they would be whole on each rank until backward.
TEST(SavedMemoryTest, OfAnAutocastRegionHasNoWeights) {
  RunRanks(2, [](World& world) {
    Chain chain;
    const auto context =
        Parallelize(chain, world, DeviceMesh::Parse("dp=2"), Plan({{"", FullyShard("dp")}}), {});
    const DTensor x = Full(context, DType::kF32, {16, 64}, 0.5, Layout(2, 1).WithShard(0, 0));
    const AutocastGuard guard(context->state(), DType::kBF16);
    const DTensor y = chain(x);
    EXPECT_EQ(y.dtype(), DType::kBF16);
    // x in bf16, what is between the layers, and the result: of half of the rows.
    EXPECT_EQ(context->allocator()->by_kind()[MemoryKind::kSaved].live, 3 * 8 * 64 * 2);
    Backward(Sum(y));
    EXPECT_EQ(chain.first.weight.grad().dtype(), DType::kF32);
  });
}

}  // namespace
}  // namespace weft
