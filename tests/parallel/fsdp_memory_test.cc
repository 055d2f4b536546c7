// Under FullyShard a parameter is whole only while something reads it.

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/optim/adamw.h"
#include "examples/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// Watches the buffers of certain sizes.
class WatchingAllocator final : public Allocator {
 public:
  explicit WatchingAllocator(std::shared_ptr<Allocator> inner) : inner_(std::move(inner)) {}

  void Watch(std::set<int64_t> sizes) { sizes_ = std::move(sizes), live_ = peak_ = count_ = 0; }
  int64_t live() const { return live_; }    // watched bytes
  int64_t peak() const { return peak_; }    // the most of them at once
  int64_t count() const { return count_; }  // watched buffers so far

  Device device() const override { return inner_->device(); }
  void* Allocate(int64_t num_bytes) override {
    if (sizes_.count(num_bytes) > 0) {
      live_ += num_bytes;
      peak_ = std::max(peak_, live_);
      ++count_;
    }
    return inner_->Allocate(num_bytes);
  }
  void Deallocate(void* data, int64_t num_bytes) noexcept override {
    if (sizes_.count(num_bytes) > 0) live_ -= num_bytes;
    inner_->Deallocate(data, num_bytes);
  }
  AllocatorStats stats() const override { return inner_->stats(); }
  void ResetPeak() override { inner_->ResetPeak(); }

 private:
  const std::shared_ptr<Allocator> inner_;
  std::set<int64_t> sizes_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t count_ = 0;
};

class WatchedWorld final : public World {
 public:
  explicit WatchedWorld(World& inner)
      : WatchedWorld(inner, std::make_shared<WatchingAllocator>(inner.allocator())) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return inner_.NewGroup(name, ranks);
  }
  WatchingAllocator& watch() { return *watch_; }

 private:
  WatchedWorld(World& inner, std::shared_ptr<WatchingAllocator> watch)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, watch, inner.tracer()),
        inner_(inner),
        watch_(watch) {}

  World& inner_;
  const std::shared_ptr<WatchingAllocator> watch_;
};

// Sizes such that a whole matrix has as many bytes as no activation and no piece of a matrix: 28 features,
// sequences of 5.
constexpr GptConfig kConfig = {.vocabulary = 257, .context = 17, .layers = 4, .heads = 4, .dim = 28};

int64_t BytesOf(const Parameter& parameter) { return parameter.spec().shape.num_elements() * 8; }
int64_t BytesOf(const std::vector<Parameter*>& parameters) {
  int64_t bytes = 0;
  for (const Parameter* parameter : parameters) bytes += BytesOf(*parameter);
  return bytes;
}

TEST(FsdpMemoryTest, WholeParametersNeverExceedTheTwoLargestUnits) {
  RunRanks(2, [](World& plain_world) {
    WatchedWorld world(plain_world);
    Gpt model(kConfig);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const Plan plan = GptPlan(mesh, DataPlan::kFsdp, /*sequence_parallel=*/false);
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});

    // Units: the blocks, and the root, which has the rest.
    const std::vector<Parameter*> all = model.AllParameters();
    std::vector<int64_t> units = {BytesOf(all)};
    for (const auto& block : model.blocks) {
      units.push_back(BytesOf(block->AllParameters()));
      units[0] -= units.back();
    }
    std::sort(units.rbegin(), units.rend());
    const int64_t bound = units[0] + units[1];

    // Matrices are told by their size. Vectors cannot be (a piece of the qkv bias is as large as a norm's
    // weight), so all of them are taken to be whole all the time.
    std::set<int64_t> matrices;
    int64_t vectors = 0;
    for (const Parameter* parameter : all) {
      const bool is_matrix = parameter->spec().shape.ndim() > 1 && parameter->name() != "bias";
      if (is_matrix) matrices.insert(BytesOf(*parameter));
      if (!is_matrix) vectors += BytesOf(*parameter);
    }
    AdamW optimizer(all, {});
    const Tensor ones = Tensor::FromValues<int32_t>({3, 5}, std::vector<int32_t>(15, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    for (int step = 1; step <= 2; ++step) {
      world.watch().Watch(matrices);
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      // Forward gathers each of 4 x 4 + 3 matrices, one or two at a time, and the tape keeps none. The
      // embeddings have odd numbers of rows and rest split over dim 1: their pieces meet in a buffer as
      // large, and are unpacked from there.
      EXPECT_EQ(world.watch().count(), 19 + 2);
      EXPECT_LE(world.watch().peak(), 2 * BytesOf(model.wte.weight) + BytesOf(model.wpe));
      EXPECT_EQ(world.watch().live(), 0);
      Backward(loss);
      optimizer.Step(1e-3);
      optimizer.ZeroGrad();
      // Whole gradients, which live until they are reduced and scattered, have the same sizes and are counted
      // too.
      EXPECT_LE(world.watch().peak() + vectors, bound);
      EXPECT_GE(world.watch().count(),
                19 + 17 + 19);  // backward gathers all but the embeddings, and makes 19 gradients
    }

    // The watch sees what a tape would keep that saves the copies.
    world.watch().Watch(matrices);
    std::vector<DTensor> kept;
    for (const Parameter* parameter : all) kept.push_back(parameter->Value());
    EXPECT_EQ(world.watch().peak() + vectors, BytesOf(all));
    EXPECT_GT(world.watch().peak() + vectors, bound);
  });
}

}  // namespace
}  // namespace weft
