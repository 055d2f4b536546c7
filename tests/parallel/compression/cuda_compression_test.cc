// Gradients of ranks with an emulated GPU each, summed by methods: the bits of ranks on CPUs, beside what the GPU computes.

#include <atomic>
#include <barrier>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/compression/gradient_compression.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/device_queue.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"
#include "tests/parallel/compression/summed_gradients.h"
#include "tests/parallel/memory/offload_ranks.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

constexpr const char* kMethods[] = {
    "bf16",
    "f16",
    "int8",
    "int8(64, error_feedback=false)",
    "onebit",
    "topk(0.05)",
    "topk(0.05, momentum=0.9)",
    "randomk(0.1)",
    "powersgd(2)",
    "powersgd(1, min_compression_rate=0.5, warm_start=false)",
};

// Every method, in each of these runs.
std::vector<SummedGradients> Runs() {
  const auto scale = [](int64_t step) { return step < 2 ? 1024.0 : 512.0; };
  const auto skips = [](int64_t step) { return step == 1; };
  return {
      {.num_ranks = 3, .steps = 4},
      {.num_ranks = 2, .steps = 4, .dtype = DType::kF32, .average = true},
      {.num_ranks = 2, .steps = 4, .scatters = true},
      {.num_ranks = 4, .steps = 4, .scatters = true, .num_replicas = 2},
      {.num_ranks = 2, .steps = 4, .dtype = DType::kF32, .scale = scale, .skips = skips},
      {.num_ranks = 4, .steps = 4, .scatters = true, .num_replicas = 2, .scale = scale, .skips = skips},
  };
}

// Sums, what is kept, and the bytes that ranks send; on a lane and without, in turn.
TEST(CudaCompressionTest, GpusGetTheBitsOfCpus) {
  const std::vector<SummedGradients> runs = Runs();
  for (const char* method : kMethods) {
    for (size_t i = 0; i < runs.size(); ++i) {
      SummedGradients run = runs[i];
      run.method = method;
      const GradientSums expected = SumGradients(run);
      run.run_ranks = RunFilling;
      EXPECT_TRUE(SumGradients(run) == expected) << method << ", run " << i;
    }
  }
}

// Of a sum over all ranks.
std::vector<CompressedLeaf> Leaves(int count, const Shape& shape, const Layout& layout, const char* method) {
  std::vector<CompressedLeaf> leaves;
  for (int i = 0; i < count; ++i) {
    leaves.push_back({.path = absl::StrCat("w", i),
                      .type = {DType::kF64, shape},
                      .layout = layout,
                      .communication = {CommunicationMethod::Parse(method), {0}}});
  }
  return leaves;
}

DTensor Term(const IntrusivePtr<MeshContext>& context, const Shape& shape, double value) {
  const Tensor piece = Tensor::Empty(context->allocator(), DType::kF64, shape);
  FillTensor(piece, value);
  return DTensor::FromLocal(context, piece, Layout(shape.ndim(), 1).WithPartial(0), shape);
}

std::vector<double> All(int64_t count, double value) { return std::vector<double>(count, value); }

// A bucket whose gradients have not been made yet, on streams that stand still: the rank goes on, on the host and on the GPU.
TEST(CudaCompressionTest, TheRankComputesBesideSums) {
  RunFilling(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto compression = GradientCompression::Make(*context, Leaves(2, {64}, Layout(1, 1), "f16"));
    std::atomic<bool> may_arrive = false, may_return = false;
    Block(world, kToHostQueue, may_arrive);
    std::vector<DTensor> sums;
    for (int leaf = 0; leaf < 2; ++leaf) {
      std::vector<ArrivedGradient> gradients;
      gradients.push_back({leaf, Term(context, {64}, leaf + 1)});
      sums.push_back(compression->Reduce(std::move(gradients), Lane::kGrad, Lane::kReplica)[0]);
      EXPECT_TRUE(sums.back().impl()->is_pending());
      EXPECT_TRUE(compression->first_sums() != nullptr);
    }
    compression->EndPass();
    const DTensor other = Term(context, {64}, 3);
    EXPECT_EQ((other + other).ToLocal().ToVector<double>(), All(64, 6));
    for (const DTensor& sum : sums) EXPECT_FALSE(sum.impl()->pending()->Test());
    Block(world, kFromHostQueue, may_return);
    may_arrive = true;
    while (!sums[1].impl()->pending()->Test()) std::this_thread::yield();
    // It has been summed: the GPU is to wait, not the host.
    sums[0].impl()->Local();
    may_return = true;
    for (int leaf = 0; leaf < 2; ++leaf) {
      EXPECT_EQ(sums[leaf].ToLocal().ToVector<double>(), All(64, 2 * (leaf + 1)));
    }
  });
}

// Where gradients rest split the next bucket waits for the copy of whole gradients, not for the sum of them.
TEST(CudaCompressionTest, WholeGradientsGoWhenTheyHaveBeenCopied) {
  RunFilling(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout split = Layout(1, 1).WithShard(0, 0);
    const auto compression = GradientCompression::Make(*context, Leaves(1, {1024}, split, "bf16"));
    const int64_t before = world.allocator()->stats().live_bytes;
    std::vector<ArrivedGradient> gradients;
    gradients.push_back({0, Term(context, {1024}, 1)});
    const DTensor sum = compression->Reduce(std::move(gradients), Lane::kGrad, Lane::kReplica)[0];
    compression->first_sums()->Settle();
    EXPECT_EQ(world.allocator()->stats().live_bytes - before, 512 * 8);
    EXPECT_EQ(sum.ToLocal().ToVector<double>(), All(512, 2));
  });
}

// What is kept lies beside the GPU.
TEST(CudaCompressionTest, StateLiesOnTheHost) {
  RunFilling(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto compression =
        GradientCompression::Make(*context, Leaves(1, {16, 32}, Layout(2, 1), "powersgd(1)"));
    EXPECT_EQ(world.allocator()->by_kind()[MemoryKind::kState].live, 0);
    EXPECT_EQ(world.host_allocator()->by_kind()[MemoryKind::kState].live, (16 * 32 + 32) * 8);
    for (const auto& entry : compression->State()) EXPECT_TRUE(entry.tensor.context()->is_host_side());
  });
}

// A gradient that others write to later is sent as it was.
TEST(CudaCompressionTest, AGradientThatIsWrittenToIsReadBefore) {
  RunFilling(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto compression = GradientCompression::Make(*context, Leaves(1, {32}, Layout(1, 1), "f16"));
    const DTensor term = Term(context, {32}, 1);
    term.impl()->MarkWritten("a test");
    std::atomic<bool> may_arrive = false;
    Block(world, kToHostQueue, may_arrive);
    std::vector<ArrivedGradient> gradients;
    gradients.push_back({0, term});
    const DTensor sum = compression->Reduce(std::move(gradients), Lane::kGrad, Lane::kReplica)[0];
    FillTensor(term.impl()->piece(), 5);
    CudaEvent behind;
    behind.Record(static_cast<CudaAllocator&>(*world.allocator()).rank_stream());
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(behind.Test());
    may_arrive = true;
    EXPECT_EQ(sum.ToLocal().ToVector<double>(), All(32, 2));
    EXPECT_EQ(term.ToLocal().ToVector<double>(), All(32, 5));
  });
}

// Over another axis a gradient is summed by what moves a GPU's bytes: NCCL in a lane's stream, or through the host.
TEST(CudaCompressionTest, WhatOtherAxesSumComesFirst) {
  const auto body = [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2,tp=2"));
    const auto compression = GradientCompression::Make(*context, Leaves(2, {32}, Layout(1, 2), "f16"));
    for (const Lane lane : {Lane::kGrad, Lane::kInline, Lane::kGrad}) {
      std::vector<ArrivedGradient> gradients;
      for (int leaf = 0; leaf < 2; ++leaf) {
        const Tensor piece = Tensor::Empty(context->allocator(), DType::kF64, {32});
        FillTensor(piece, world.rank() + 1 + 10 * leaf);
        const Layout arriving = Layout(1, 2).WithPartial(0).WithPartial(1);
        gradients.push_back({leaf, DTensor::FromLocal(context, piece, arriving, {32})});
      }
      const std::vector<DTensor> sums = compression->Reduce(std::move(gradients), lane, lane);
      compression->EndPass();
      EXPECT_EQ(sums[0].ToLocal().ToVector<double>(), All(32, 10));
      EXPECT_EQ(sums[1].ToLocal().ToVector<double>(), All(32, 50));
    }
  };
  RunFilling(4, body);
  RunRanks(4, body,
           {.backend = Backend::kLocal,
            .device = DeviceType::kCuda,
            .device_options = {.fill_freed = true},
            .threads_per_rank = 1});
}

// A gradient that does not lie row by row.
TEST(CudaCompressionTest, AViewIsSentInItsOwnOrder) {
  RunFilling(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto compression = GradientCompression::Make(*context, Leaves(1, {4, 3}, Layout(2, 1), "f16"));
    std::vector<double> values(12), expected(12);
    std::iota(values.begin(), values.end(), 0);
    for (int row = 0; row < 4; ++row) {
      for (int column = 0; column < 3; ++column) expected[row * 3 + column] = 2 * values[column * 4 + row];
    }
    const Tensor lying = CloneTensor(Tensor::FromValues<double>({3, 4}, values), context->allocator());
    std::vector<ArrivedGradient> gradients;
    gradients.push_back(
        {0, DTensor::FromLocal(context, lying.Transpose(0, 1), Layout(2, 1).WithPartial(0), {4, 3})});
    const DTensor sum = compression->Reduce(std::move(gradients), Lane::kGrad, Lane::kReplica)[0];
    EXPECT_EQ(sum.ToLocal().ToVector<double>(), expected);
  });
}

TEST(CudaCompressionTest, APeerThatFailsIsNamed) {
  for (const Lane lane : {Lane::kGrad, Lane::kInline}) {
    std::string told;
    const auto body = [&](World& world) {
      const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
      const auto compression = GradientCompression::Make(*context, Leaves(1, {32}, Layout(1, 1), "int8"));
      const auto sum = [&](double value) {
        std::vector<ArrivedGradient> gradients;
        gradients.push_back({0, Term(context, {32}, value)});
        const DTensor sum = compression->Reduce(std::move(gradients), lane, lane)[0];
        compression->EndPass();
        return sum.ToLocal().ToVector<double>();
      };
      sum(1);
      if (world.rank() == 1) Throw(absl::StatusCode::kInternal, "no more gradients");
      told = MessageOf([&] { sum(2); });
    };
    EXPECT_EQ(MessageOf([&] { RunFilling(2, body); }), "rank 1: no more gradients");
    EXPECT_THAT(told, testing::HasSubstr("no more gradients"));
  }
}

// NCCL lets go of a collective that made the gradient, and the device goes on with elements that are anything: no sum is made
// of them silently.
TEST(CudaCompressionTest, AGradientThatWasCutOffIsAnError) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto compression = GradientCompression::Make(*context, Leaves(1, {32}, Layout(1, 1), "onebit"));
    const auto group = world.NewGroup("tp", {0, 1});
    const DTensor term = Term(context, {32}, 1);
    AllReduceUntilAborted(world, *fake, *group, term.ToLocal());
    std::vector<ArrivedGradient> gradients;
    gradients.push_back({0, term});
    const DTensor sum = compression->Reduce(std::move(gradients), Lane::kGrad, Lane::kReplica)[0];
    both.arrive_and_wait();
    fake->SetAsyncError(world.rank(), NcclResult::kRemoteError);
    EXPECT_THAT(MessageOf([&] { sum.ToLocal(); }), testing::HasSubstr("group 'tp'"));
  };
  RunNcclRanks(2, body, fake);
}

TEST(CudaCompressionTest, OtherDevicesAreRefused) {
  RunRanks(1,
           [](World& world) {
             const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
             EXPECT_EQ(GradientCompression::Make(*context, Leaves(1, {32}, Layout(1, 1), "int8")), nullptr);
           },
           {.device = DeviceType::kMeta});
  RunRanks(2,
           [](World& world) {
             const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
             EXPECT_EQ(
                 InvalidArgumentMessage(
                     [&] { GradientCompression::Make(*context, Leaves(1, {32}, Layout(1, 1), "int8")); }),
                 "Communication(int8) on 'w0': gradients are compressed on CPUs and beside GPUs; this rank's "
                 "lie on meta");
           },
           {.device = DeviceType::kMeta});
}

}  // namespace
}  // namespace weft
