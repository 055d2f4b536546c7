#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/host_copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// The oracle: the same calls on the CPU.
class CudaCopyTest : public testing::Test {
 protected:
  // A view of `shape`, its dims in a random order in memory, with gaps.
  Tensor Placed(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape,
                uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<int> order(shape.ndim());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Shape outer = shape;
    for (int i = 0; i < shape.ndim(); ++i) outer[i] = shape[order[i]] + static_cast<int64_t>(random() % 3);
    Tensor view = Tensor::Empty(allocator, dtype, outer);
    FillTensor(view, 0);
    std::vector<int> inverse(shape.ndim());
    for (int i = 0; i < shape.ndim(); ++i) {
      view = view.Slice(i, outer[i] - shape[order[i]], shape[order[i]]);
      inverse[order[i]] = i;
    }
    return view.Permute(inverse);
  }

  // Values of both signs, some beyond the small dtypes.
  Tensor Values(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape,
                uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<double> values(shape.num_elements());
    for (double& value : values)
      value = static_cast<double>(static_cast<int64_t>(random() % 2001) - 1000) / 4;
    const Tensor host = CastTensor(Tensor::FromValues<double>(shape, values), dtype, cpu_);
    const Tensor placed = Placed(allocator, dtype, shape, seed + 1);
    CopyTensor(host, placed);
    return placed;
  }

  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
};

const Shape kShapes[] = {{},     {1},      {5},         {300},        {3, 0, 2},
                         {7, 5}, {40, 33}, {2, 17, 65}, {2, 3, 4, 5}, {3, 1, 2, 2, 3}};

TEST_F(CudaCopyTest, CopiesAnyStridesAndDTypes) {
  uint64_t seed = 1;
  for (const Shape& shape : kShapes) {
    for (DType from : kAllDTypes) {
      for (DType to : kAllDTypes) {
        if (from != to && shape.num_elements() > 100) continue;
        ++seed;
        const Tensor expected = Placed(cpu_, to, shape, seed);
        CopyTensor(Values(cpu_, from, shape, seed), expected);
        const Tensor actual = Placed(cuda_, to, shape, seed + 7);
        CopyTensor(Values(cuda_, from, shape, seed), actual);
        EXPECT_EQ(actual.ToVector<double>(), expected.ToVector<double>())
            << shape << " " << DTypeName(from) << " to " << DTypeName(to);
      }
    }
  }
}

TEST_F(CudaCopyTest, TransposesInAllOrders) {
  std::vector<int> order = {0, 1, 2};
  do {
    const Tensor tensor = Values(cuda_, DType::kBF16, {19, 35, 66}, 3);
    const Tensor dense = CloneTensor(tensor, cuda_);
    const Tensor moved = CloneTensor(dense.Permute(order), cuda_);
    EXPECT_EQ(moved.ToVector<float>(), OnHost(dense).Permute(order).ToVector<float>());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(CudaCopyTest, RepeatsAndFills) {
  const Tensor row = Tensor::FromValues<float>({3}, {1, 2, 3}, cuda_);
  EXPECT_EQ(CloneTensor(row.Expand({2, 3}), cuda_).ToVector<float>(), (std::vector<float>{1, 2, 3, 1, 2, 3}));
  const Tensor whole = Tensor::FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6}, cuda_);
  FillTensor(whole.Slice(1, 1, 1), 9);
  EXPECT_EQ(whole.ToVector<float>(), (std::vector<float>{1, 9, 3, 4, 9, 6}));
}

TEST_F(CudaCopyTest, Accumulates) {
  uint64_t seed = 100;
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (DType dtype : kAllDTypes) {
      for (const Shape& shape : {Shape{}, Shape{6, 7}, Shape{0}}) {
        ++seed;
        const Tensor expected = Values(cpu_, dtype, shape, seed);
        AccumulateTensor(Values(cpu_, dtype, shape, seed + 1), expected, op);
        const Tensor actual = Values(cuda_, dtype, shape, seed);
        AccumulateTensor(Values(cuda_, dtype, shape, seed + 1), actual, op);
        EXPECT_EQ(actual.ToVector<double>(), expected.ToVector<double>()) << DTypeName(dtype);
      }
    }
  }
}

TEST_F(CudaCopyTest, OneOrderWithoutWaiting) {
  const Tensor a = Tensor::FromValues<float>({4}, {1, 2, 3, 4}, cuda_);
  const int64_t pending = cuda_emulator::NumPending();
  Tensor sum = CloneTensor(a, cuda_);
  for (int i = 0; i < 10; ++i) {
    // A temporary's memory goes back to the pool with its work still queued, and is used again.
    const Tensor doubled = CloneTensor(sum, cuda_);
    AccumulateTensor(sum, doubled, ReduceOp::kSum);
    sum = doubled;
  }
  EXPECT_EQ(cuda_emulator::NumPending(), pending + 21);
  EXPECT_EQ(sum.ToVector<float>(), (std::vector<float>{1024, 2048, 3072, 4096}));
}

// What is given to the device after Begin is not waited for.
TEST_F(CudaCopyTest, AHostCopyWaitsForItsPlaceAlone) {
  HostCopy copy;
  for (const float first : {1.0f, 5.0f}) {
    const Tensor a = Tensor::FromValues<float>({2, 2}, {first, 2, 3, 4}, cuda_);
    AccumulateTensor(a, a, ReduceOp::kSum);
    copy.Begin(a.Slice(1, 0, 1));
    FillTensor(a, 7);
    const Tensor later = CloneTensor(a, cuda_);
    EXPECT_EQ(copy.Wait().ToVector<float>(), (std::vector<float>{2 * first, 6}));
    EXPECT_GT(cuda_emulator::NumPending(), 0);
    EXPECT_EQ(later.ToVector<float>(), (std::vector<float>(4, 7)));
  }
  const Tensor here = Tensor::FromValues<float>({1}, {3});
  HostCopy of_host;
  of_host.Begin(here);
  EXPECT_EQ(of_host.Wait().data<float>(), here.data<float>());
}

// A worker has no device of its own: without the tensor's it would make a context on GPU 0.
TEST_F(CudaCopyTest, WhateverThreadCopiesDoesSoOnTheTensorsDevice) {
  cuda_emulator::SetMachine({.num_devices = 2});
  {
    const Tensor tensor =
        Tensor::FromValues<float>({2, 2}, {1, 2, 3, 4}, MakeAllocator({DeviceType::kCuda, 1}));
    const int64_t before = cuda_emulator::NumCallsFromOtherDevices();
    std::thread worker([&] {
      const Tensor turned = OnHost(tensor.Transpose(0, 1));
      EXPECT_EQ(turned.ToVector<float>(), (std::vector<float>{1, 3, 2, 4}));
      CopyTensor(turned, tensor);
      CopyTensor(turned, tensor.Transpose(0, 1));
      int device = 0;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      EXPECT_EQ(device, 1) << "going back to GPU 0 makes a context there, too";
    });
    worker.join();
    EXPECT_EQ(cuda_emulator::NumCallsFromOtherDevices(), before);
    EXPECT_EQ(tensor.ToVector<float>(), (std::vector<float>{1, 2, 3, 4}));
  }
  cuda_emulator::SetMachine({});
}

TEST_F(CudaCopyTest, Misuse) {
  const Tensor other = Tensor::Empty(MakeMetaAllocator(), DType::kF32, {2});
  const Tensor tensor = Tensor::Empty(cuda_, DType::kF32, {2});
  EXPECT_EQ(InvalidArgumentMessage([&] { CopyTensor(other, tensor); }),
            "CopyTensor: devices differ: from f32[2] on meta:0 to f32[2] on cuda:0");
  EXPECT_EQ(InvalidArgumentMessage([&] { AccumulateTensor(OnHost(tensor), tensor, ReduceOp::kSum); }),
            "AccumulateTensor: devices differ: from f32[2] on cpu:0 to f32[2] on cuda:0");
}

}  // namespace
}  // namespace weft
