// Tensors in the ranks' second memory: values, where they lie, what computes on them, what errors say.

#include "dtensor/host_memory.h"

#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/tape/saved_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

constexpr int64_t kRows = 37, kColumns = 64;

DTensor Rows(const IntrusivePtr<MeshContext>& context) {
  std::vector<double> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) / 7;
  return DTensor::Distribute(context, Tensor::FromValues<double>({kRows, kColumns}, values),
                             Layout(2, 1).WithShard(0, 0));
}

DTensor Saved(const DTensor& x) {
  IntrusivePtr<SavedBuffer> there;
  DTensor saved = SaveOnHost(x, &there);
  EXPECT_EQ(static_cast<bool>(there), saved.impl() != x.impl());
  return saved;
}

int64_t SavedThere(World& world) { return world.host_allocator()->by_kind()[MemoryKind::kSaved].live; }

TEST(HostMemoryTest, ValuesGoAndComeBack) {
  RunRanks(3, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=3"));
    const DTensor x = Rows(context);
    const DTensor there = ToHost(x, MemoryKind::kState);
    EXPECT_TRUE(there.context()->is_host_side());
    EXPECT_EQ(there.context()->DeviceSide(), context);
    EXPECT_EQ(context->HostSide(), there.context());
    EXPECT_EQ(there.ToLocal().buffer()->allocator(), world.host_allocator());
    EXPECT_EQ(world.host_allocator()->by_kind()[MemoryKind::kState].live,
              RoundUpToGranule(x.ToLocal().num_bytes()));
    EXPECT_EQ(there.layout(), x.layout());
    EXPECT_EQ(ToHost(there).impl(), there.impl());
    EXPECT_EQ(ToDevice(there).context(), context);
    EXPECT_EQ(ToDevice(x).impl(), x.impl());
    const std::vector<double> expected = x.FullTensor().ToVector<double>();
    EXPECT_EQ(there.FullTensor().ToVector<double>(), expected);
    EXPECT_EQ(ToDevice(there).FullTensor().ToVector<double>(), expected);
    // On a CPU it computes on the second memory as it is.
    EXPECT_EQ(ToDevice(there).ToLocal().buffer(), there.ToLocal().buffer());
    EXPECT_EQ(InMemoryOf(x, *there.context()).context(), there.context());
    EXPECT_EQ(InMemoryOf(there, *context).context(), context);
  });
}

TEST(HostMemoryTest, WhatIsComputedOfItStaysThere) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DTensor x = Rows(context);
    const DTensor there = ToHost(x);
    const DTensor sum = Add(there, there);
    EXPECT_EQ(sum.context(), there.context());
    EXPECT_EQ(sum.ToLocal().buffer()->allocator(), world.host_allocator());
    EXPECT_EQ(sum.FullTensor().ToVector<double>(), Add(x, x).FullTensor().ToVector<double>());
    EXPECT_EQ(Sum(there).Item(), Sum(x).Item());
    const DTensor whole = there.Redistribute(Layout(2, 1));
    EXPECT_EQ(whole.context(), there.context());
    EXPECT_EQ(whole.ToLocal().ToVector<double>(), x.FullTensor().ToVector<double>());
  });
}

TEST(HostMemoryTest, ValuesThatShareMemoryShareTheCopy) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    DTensor x = Rows(context);
    const std::vector<double> expected = Transpose(x, 0, 1).ToLocal().ToVector<double>();
    IntrusivePtr<SavedBuffer> there, again;
    DTensor saved = SaveOnHost(x, &there);
    DTensor turned = SaveOnHost(Transpose(x, 0, 1), &again);
    EXPECT_EQ(there, again);
    const int64_t bytes = RoundUpToGranule(x.ToLocal().num_bytes());
    EXPECT_EQ(SavedThere(world), bytes);
    EXPECT_EQ(saved.ToLocal().buffer(), turned.ToLocal().buffer());
    x = DTensor();
    saved = DTensor();
    there = nullptr;
    EXPECT_EQ(FetchSaved(turned, *again).ToLocal().ToVector<double>(), expected);
    turned = DTensor();
    again = nullptr;
    EXPECT_EQ(SavedThere(world), 0);
  });
}

TEST(HostMemoryTest, SmallPiecesAndParametersStay) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor small = Full(context, DType::kF32, {16}, 1);
    EXPECT_EQ(Saved(small).impl(), small.impl());
    const DTensor leaf = Rows(context).RequiresGrad();
    leaf.impl()->MarkWritten("a test");
    EXPECT_EQ(Saved(leaf).impl(), leaf.impl());
    EXPECT_EQ(world.host_allocator()->stats().live_bytes, SavedThere(world));
  });
}

// What backward reads is there in between, and is given back; gradients have the same bits.
TEST(HostMemoryTest, WhatIsSavedWhileAGuardLivesIsThere) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto gradient = [&](bool on_host) {
      const DTensor x = Rows(context).RequiresGrad();
      DTensor loss;
      {
        const SaveOnHostGuard guard(context->state(), on_host);
        const MemoryKindGuard kind(*context->allocator(), MemoryKind::kSaved);
        const DTensor y = Exp(Scale(x, 1e-3));
        loss = Sum(Mul(y, Tanh(y)));
      }
      const int64_t bytes = RoundUpToGranule(x.ToLocal().num_bytes());
      // y, of Exp and both operands; tanh's result.
      EXPECT_EQ(SavedThere(world), on_host ? 2 * bytes : 0);
      EXPECT_LT(context->allocator()->by_kind()[MemoryKind::kSaved].live, on_host ? bytes : 4 * bytes);
      Backward(loss);
      EXPECT_EQ(SavedThere(world), 0);
      return x.grad().FullTensor().ToVector<double>();
    };
    EXPECT_EQ(gradient(true), gradient(false));
  });
}

// A batch whose memory is filled anew for each step, as a loader may do.
TEST(HostMemoryTest, MemoryThatIsFilledAnewIsCopiedAnew) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const Tensor batch = Tensor::Empty(context->allocator(), DType::kF64, {kRows, kColumns});
    const DTensor x = DTensor::FromLocal(context, batch, Layout(2, 1));
    for (const double value : {1.0, 2.0}) {
      FillTensor(batch, value);
      const DTensor w = Rows(context).RequiresGrad();
      const SaveOnHostGuard guard(context->state(), true);
      Backward(Sum(Mul(x, w)));
      EXPECT_EQ(w.grad().ToLocal().ToVector<double>(), std::vector<double>(kRows * kColumns, value));
      EXPECT_EQ(SavedThere(world), 0) << "goes with the history, not with the batch";
    }
  });
}

// A gradient that is read by what is differentiated, and added to in place: each reads it as it was.
TEST(HostMemoryTest, WhatIsAddedToInPlaceIsCopiedAnew) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=1"));
    const DTensor ones = Full(context, DType::kF64, {kRows, kColumns}, 1);
    const DTensor w = Rows(context).RequiresGrad();
    std::vector<DTensor> factors, losses;
    std::vector<const void*> places;
    for (int i = 0; i < 2; ++i) {
      Backward(Sum(Mul(ones, w)));
      places.push_back(w.grad().ToLocal().buffer()->data());
      factors.push_back(Rows(context).RequiresGrad());
      const SaveOnHostGuard guard(context->state(), true);
      losses.push_back(Sum(Mul(w.grad(), factors.back())));
    }
    ASSERT_EQ(places[0], places[1]) << "was not added to in place";
    for (int i = 0; i < 2; ++i) {
      Backward(losses[i]);
      EXPECT_EQ(factors[i].grad().ToLocal().ToVector<double>(), std::vector<double>(kRows * kColumns, i + 1));
    }
  });
}

}  // namespace
}  // namespace weft
