// What is offloaded beside emulated GPUs: copies run in two streams of their own, and give the bits of what stays on the
// device. A stream runs only when somebody waits for it, pinned memory is read when the stream comes to it, and memory that
// is given back turns to NaN.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/tape/saved_buffer.h"
#include "dtensor/tape/saved_value.h"
#include "parallel/parallelize.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/device_queue.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/parallel/memory/offload_ranks.h"

namespace weft {
namespace {

using cuda_emulator::LeftOut;

constexpr int64_t kDim = 24;
constexpr int64_t kRows = 48;  // on two ranks; a piece of activations is large enough to be offloaded

class Chain : public Module {
 public:
  Chain() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_unique<Linear>(this, absl::StrCat("blocks.", i), kDim, kDim));
    }
  }

  std::vector<std::unique_ptr<Linear>> blocks;

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = x;
    for (const std::unique_ptr<Linear>& block : blocks) y = Tanh((*block)(y));
    return y;
  }
};

struct Outcome {
  std::vector<double> values;    // losses and parameters of rank 0
  int64_t num_all_gathers = 0;   // of rank 0
  int64_t saved_on_device = 0;   // after forward
  int64_t offloaded_states = 0;  // bytes in the second memory of rank 0
};

// After steps of two microbatches.
Outcome Train(Plan plan, const std::optional<Style>& offload) {
  Outcome outcome;
  if (offload.has_value()) plan = plan.Merge({{"", *offload}});
  plan.set_scheduler({.bucket_mb = 0.01, .prefetch = 1});
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  RunFilling(2, [&](World& world) {
    Chain model;
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    AdamW optimizer(model.AllParameters(), {});
    Outcome mine;
    for (int step = 0; step < 3; ++step) {
      for (int part = 0; part < 2; ++part) {
        const Tensor rows = RandomF64({kRows, kDim}, static_cast<uint64_t>(10 * step + part));
        const DTensor x = DTensor::Distribute(context, rows, Layout(2, 1).WithShard(0, 0));
        const DTensor loss = Mean(Square(model(x)));
        mine.saved_on_device = world.allocator()->by_kind()[MemoryKind::kSaved].live;
        Backward(loss);
        mine.values.push_back(loss.Item());
      }
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
    }
    for (const Parameter* parameter : model.AllParameters()) {
      const Tensor whole = CloneTensor(parameter->at_rest().FullTensor(), MakeCpuAllocator());
      for (double element : whole.ToVector<double>()) mine.values.push_back(element);
    }
    for (const LedgerEntry& entry : world.ledger().entries()) {
      if (entry.kind == CollectiveKind::kAllGather) mine.num_all_gathers += entry.calls;
    }
    mine.offloaded_states = world.host_allocator()->by_kind()[MemoryKind::kState].live;
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

const Plan kDdp = {{"", DataParallel("dp")}};
const Plan kFsdp = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};

std::vector<Style> Offloads() {
  return {Offload({.state = true}), Offload({.parameters = true}), Offload({.activations = true}),
          Offload({.parameters = true, .activations = true})};
}

TEST(CudaOffloadTest, ChangesNoBit) {
  for (const Plan& plan : {kDdp, kFsdp}) {
    const Outcome expected = Train(plan, std::nullopt);
    ASSERT_GT(expected.values.size(), 6u);
    EXPECT_GT(std::abs(expected.values[4] - expected.values[0]), 1e-4) << "the steps change nothing";
    for (const Style& offload : Offloads()) {
      const Outcome outcome = Train(plan, offload);
      EXPECT_EQ(outcome.values, expected.values) << offload.ToString();
      // Parameters that lie on the host are gathered as often as others.
      EXPECT_EQ(outcome.num_all_gathers, expected.num_all_gathers) << offload.ToString();
    }
    EXPECT_GT(Train(plan, Offload({.state = true})).offloaded_states, 0);
  }
}

// What other waits cover in these steps. The rank's last one is for the copy of the count of updates, which the host has waited
// for long before the next step counts. Under ddp gradients are reduced where they lie, so the rank waits for their lane only
// before the update reads what was copied to the host; and there the host waits for the copy, which has waited for the lane.
// Under fsdp the parameters' lane waits for the rank because it writes to new memory, but
// also for the copy from the host, which was issued just before and has waited for the rank.
bool IsCovered(bool is_fsdp, LeftOut waits, int64_t only, int64_t num_pairs) {
  if (waits == LeftOut::kWaitsOfFirst) return only == num_pairs - 1 || (!is_fsdp && only == 2);
  return is_fsdp && only == 4;
}

TEST(CudaOffloadTest, EachWaitLeftOutIsSeen) {
  const Style offload = Offload({.parameters = true, .activations = true});
  for (const bool is_fsdp : {false, true}) {
    const Plan& plan = is_fsdp ? kFsdp : kDdp;
    const Outcome expected = Train(plan, offload);
    for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
      cuda_emulator::LeaveOutWaits(waits, /*only=*/1000);
      EXPECT_EQ(Train(plan, offload).values, expected.values);
      const int64_t num_pairs = cuda_emulator::NumWaitingPairs();
      EXPECT_GT(num_pairs, 1);
      for (int64_t only = 0; only < num_pairs; ++only) {
        if (IsCovered(is_fsdp, waits, only, num_pairs)) continue;
        const auto differs = [&] {
          Outcome outcome;
          const std::string error = MessageOf([&] { outcome = Train(plan, offload); });
          return error != "no error" || outcome.values != expected.values;
        };
        EXPECT_TRUE(cuda_emulator::ShowsInSomeRun(waits, only, differs))
            << (is_fsdp ? "fsdp, " : "ddp, ")
            << (waits == LeftOut::kWaitsOfFirst ? "of the rank's stream" : "of other streams") << ", pair "
            << only << " of " << num_pairs;
        EXPECT_GT(cuda_emulator::NumLeftOut(), 0);
      }
      cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    }
  }
}

// Numbers on one rank's device.
DTensor Numbers(const IntrusivePtr<MeshContext>& context, uint64_t seed) {
  return DTensor::Distribute(context, RandomF64({kRows, kDim}, seed), Layout(2, 1));
}

TEST(CudaOffloadTest, TheRankComputesBesideCopies) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor there = ToHost(Numbers(context, 2));
    there.ToLocal();
    std::atomic<bool> may_run = false;
    Block(world, kToHostQueue, may_run);
    Block(world, kFromHostQueue, may_run);
    IntrusivePtr<SavedBuffer> buffer;
    const DTensor saved = SaveOnHost(Numbers(context, 1), &buffer);  // whose memory is used again
    const DTensor brought = ToHost(Numbers(context, 3));
    const DTensor here = ToDevice(there);
    EXPECT_TRUE(brought.impl()->is_pending());
    EXPECT_TRUE(here.impl()->is_pending());
    // Would wait for ever behind a copy.
    EXPECT_EQ(Sum(Numbers(context, 4) - Numbers(context, 4)).Item(), 0);
    may_run = true;
    EXPECT_EQ(brought.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, 3).ToVector<double>());
    EXPECT_EQ(here.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, 2).ToVector<double>());
    EXPECT_EQ(FetchSaved(saved, *buffer).ToLocal().ToVector<double>(),
              RandomF64({kRows, kDim}, 1).ToVector<double>());
  });
}

TEST(CudaOffloadTest, WhatWasSavedBeforeIsFetchedAhead) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const auto saved_here = [&] { return world.allocator()->by_kind()[MemoryKind::kSaved].live; };
    std::vector<DTensor> saved;
    std::vector<IntrusivePtr<SavedBuffer>> buffers(3);
    int64_t bytes = 0;
    for (uint64_t i = 0; i < buffers.size(); ++i) {
      const DTensor x = Numbers(context, i);
      bytes = RoundUpToGranule(x.ToLocal().num_bytes());
      saved.push_back(SaveOnHost(x, &buffers[i]));
      // A view of it shares the copy.
      IntrusivePtr<SavedBuffer> shared;
      SaveOnHost(Transpose(x, 0, 1), &shared);
      EXPECT_EQ(shared, buffers[i]);
    }
    EXPECT_EQ(saved_here(), 0);
    const int64_t copies_of_all = 3 * bytes;
    EXPECT_EQ(world.host_allocator()->by_kind()[MemoryKind::kSaved].live, copies_of_all);
    for (size_t i = buffers.size(); i-- > 0;) {
      const DTensor back = FetchSaved(saved[i], *buffers[i]);
      EXPECT_EQ(saved_here(), (i + 1) * bytes) << "all that is left fits";
      saved.pop_back();
      buffers[i] = nullptr;
      EXPECT_EQ(back.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, i).ToVector<double>());
    }
    EXPECT_EQ(saved_here(), 0);
  });
}

// A fetch that fails leaves nothing half done.
TEST(CudaOffloadTest, AFetchThatFailsMayBeTriedAgain) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    IntrusivePtr<SavedBuffer> buffer;
    const DTensor saved = SaveOnHost(Numbers(context, 1), &buffer);
    cuda_emulator::FailNext("cudaMemcpyAsync", cudaErrorIllegalAddress);
    EXPECT_THAT(MessageOf([&] { FetchSaved(saved, *buffer); }),
                testing::HasSubstr("a kernel that ran before"));
    EXPECT_EQ(FetchSaved(saved, *buffer).ToLocal().ToVector<double>(),
              RandomF64({kRows, kDim}, 1).ToVector<double>());
  });
}

TEST(CudaOffloadTest, SavedValuesMayBeReadAgainOrDropped) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const SaveOnHostGuard guard(context->state(), true);
    const DTensor x = Numbers(context, 1).RequiresGrad();
    const DTensor loss = Sum(Square(Tanh(Square(Tanh(x)))));
    Backward(loss, DTensor(), {.retain_graph = true});
    const std::vector<double> once = x.grad().ToLocal().ToVector<double>();
    Backward(loss);
    const std::vector<double> twice = x.grad().ToLocal().ToVector<double>();
    ASSERT_EQ(once.size(), twice.size());
    for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
    Square(Tanh(x));  // nobody differentiates it
    EXPECT_EQ(Sum(Square(x)).Item(), Sum(Square(x.Detach())).Item());
  });
}

// A value that is updated in place after it was sent to the host has arrived as it was.
TEST(CudaOffloadTest, DeviceMemoryIsReadBeforeItChanges) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor x = Numbers(context, 1);
    x.impl()->MarkWritten("a test");
    std::atomic<bool> may_run = false;
    Block(world, kToHostQueue, may_run);
    const DTensor before = ToHost(x);
    FillTensor(x.ToLocal(), -1);
    CudaEvent behind;
    behind.Record(static_cast<CudaAllocator&>(*world.allocator()).rank_stream());
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(behind.Test());
    may_run = true;
    EXPECT_EQ(before.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, 1).ToVector<double>());
    EXPECT_EQ(ToHost(x).ToLocal().ToVector<double>(), std::vector<double>(kRows * kDim, -1));
  });
}

// Nor does the copy of a pending value whose memory another one, which shares it, has been written to since.
TEST(CudaOffloadTest, ACopyToTheHostFollowsWhoWrites) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor x = Numbers(context, 1);
    x.impl()->MarkWritten("a test");
    const DTensor other(MakeIntrusive<DTensorImpl>(context, x.layout(), x.type(), x.ToLocal()));
    CopyInto(ToHost(Numbers(context, 2)), x);
    ASSERT_TRUE(x.impl()->is_pending());
    x.impl()->pending()->works().back().Wait();
    FillTensor(other.ToLocal(), -1);
    EXPECT_EQ(ToHost(x).ToLocal().ToVector<double>(), std::vector<double>(kRows * kDim, -1));
  });
}

// What is on its way to memory is waited for by all that share it.
TEST(CudaOffloadTest, ACopyToTheDeviceIsWaitedForByAllThatShareItsMemory) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor x = Numbers(context, 1);
    x.impl()->MarkWritten("a test");
    const DTensor other = WithoutHistory(x);
    CopyInto(ToHost(Numbers(context, 2)), x);
    EXPECT_TRUE(other.impl()->is_pending());
    EXPECT_EQ(other.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, 2).ToVector<double>());
    EXPECT_FALSE(x.impl()->is_pending());
  });
}

// Copies run in order, so those at the front alone are asked for whether they have ended.
TEST(CudaOffloadTest, CopiesUnderWayAreNotAskedForEachTime) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    constexpr int kCopies = 40;
    std::vector<DTensor> there, here;
    for (int i = 0; i < kCopies; ++i) there.push_back(ToHost(Numbers(context, static_cast<uint64_t>(i))));
    for (const DTensor& x : there) x.ToLocal();
    std::atomic<bool> may_run = false;
    Block(world, kFromHostQueue, may_run);
    const int64_t before = cuda_emulator::NumEventQueries();
    for (const DTensor& x : there) here.push_back(ToDevice(x));
    EXPECT_LE(cuda_emulator::NumEventQueries() - before, 5 * kCopies);
    may_run = true;
    for (int i = 0; i < kCopies; ++i) {
      EXPECT_EQ(here[i].ToLocal().ToVector<double>(),
                RandomF64({kRows, kDim}, static_cast<uint64_t>(i)).ToVector<double>());
    }
  });
}

// What a copy still reads is not written to before.
TEST(CudaOffloadTest, HostMemoryIsReadBeforeItChanges) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor there = ToHost(Numbers(context, 1));
    const DTensor here = ToDevice(there);
    const DTensor again = ToDevice(there);
    FillTensor(there.ToLocal(), -1);
    for (const DTensor& copy : {here, again}) {
      EXPECT_EQ(copy.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, 1).ToVector<double>());
    }
    EXPECT_EQ(ToDevice(there).ToLocal().ToVector<double>(), std::vector<double>(kRows * kDim, -1));
    // Nor is the device's memory read before it has come.
    const DTensor target = Numbers(context, 2);
    const DTensor doubled = target + target;
    CopyInto(ToHost(Numbers(context, 3)), target);
    EXPECT_TRUE(target.impl()->is_pending());
    EXPECT_EQ((target + target).ToLocal().ToVector<double>(),
              (Numbers(context, 3) + Numbers(context, 3)).ToLocal().ToVector<double>());
    EXPECT_EQ(doubled.ToLocal().ToVector<double>(),
              (Numbers(context, 2) + Numbers(context, 2)).ToLocal().ToVector<double>());
  });
}

// Whichever of the values that share the memory is copied, and whichever is written to.
TEST(CudaOffloadTest, HostMemoryThatIsSharedIsReadBeforeItChanges) {
  RunFilling(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor there = ToHost(Numbers(context, 1));
    there.ToLocal();
    there.impl()->MarkWritten("a test");
    const DTensor here = ToDevice(WithoutHistory(there));
    FillTensor(there.ToLocal(), -1);
    EXPECT_EQ(here.ToLocal().ToVector<double>(), RandomF64({kRows, kDim}, 1).ToVector<double>());
    // By CopyInto.
    const DTensor target = Numbers(context, 2);
    CopyInto(WithoutHistory(there), target);
    FillTensor(there.ToLocal(), -2);
    EXPECT_EQ(target.ToLocal().ToVector<double>(), std::vector<double>(kRows * kDim, -1));
  });
}

}  // namespace
}  // namespace weft
