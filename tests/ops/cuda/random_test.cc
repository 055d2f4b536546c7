// Random CUDA kernels, emulated: the bits of the CPU's, on whole tensors and on pieces that begin and end
// inside blocks of random words.

#include "ops/creation/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/philox.h"
#include "tests/message_of.h"
#include "tests/ops/cuda/both_devices.h"

namespace weft {
namespace {

constexpr RandomKey kKey = {.seed = 7, .stream = 0x123456789abcdef, .step = 3};
constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

std::vector<ShardBox> Boxes() {
  const int64_t carry = int64_t{1} << 34;  // where the low word of the block's number overflows
  return {
      WholeBox({}),
      WholeBox({1}),
      WholeBox({4}),
      WholeBox({4099}),
      WholeBox({33, 64}),
      {.global_shape = {7, 13}, .offset = {2, 3}, .shape = {4, 9}},
      {.global_shape = {7, 13}, .offset = {5, 0}, .shape = {2, 13}},
      {.global_shape = {6, 5}, .offset = {1, 2}, .shape = {4, 1}},
      {.global_shape = {3, 8, 16}, .offset = {1, 2, 4}, .shape = {2, 3, 8}},
      {.global_shape = {3, 8, 16}, .offset = {0, 0, 8}, .shape = {3, 8, 8}},
      {.global_shape = {3, 3, 2, 3}, .offset = {1, 1, 0, 1}, .shape = {2, 2, 2, 2}},
      {.global_shape = {carry + 100}, .offset = {carry - 50}, .shape = {121}},
      {.global_shape = {int64_t{1} << 22, int64_t{1} << 14},
       .offset = {(int64_t{1} << 21) + 3, 5},
       .shape = {3, 11}},
      {.global_shape = {5, 3}, .offset = {5, 0}, .shape = {0, 3}},
  };
}

std::vector<Piece> Nothing(const std::shared_ptr<Allocator>&) { return {}; }

class RandomTest : public testing::Test {
 protected:
  template <class Scalars>
  void CompareCreation(const OpDef& op, DType dtype, const Scalars& scalars) {
    for (const ShardBox& box : Boxes()) {
      const CreationAttributes attributes = {.dtype = dtype, .shape = box.global_shape};
      const auto results = both_.Run(op, Nothing, {box}, &attributes, &scalars);
      EXPECT_EQ(ByteDifference(results.cuda[0], results.cpu[0]), "") << DTypeName(dtype) << " " << box;
    }
  }

  // On operands from [low, high), contiguous and with rows and columns swapped in memory.
  template <class Scalars>
  void CompareMap(const OpDef& op, DType dtype, const Scalars& scalars, double low, double high) {
    const NoAttributes attributes;
    for (const ShardBox& box : Boxes()) {
      for (const bool swapped : {false, true}) {
        const int last = box.shape.ndim() - 1;
        if (swapped && last < 1) continue;
        const auto operands = [&](const std::shared_ptr<Allocator>& allocator) -> std::vector<Piece> {
          Shape shape = box.shape;
          if (swapped) std::swap(shape[0], shape[last]);
          const Tensor x = PatternTensor(allocator, dtype, shape, low, high);
          return {{swapped ? x.Transpose(0, last) : x, box}};
        };
        const auto results = both_.Run(op, operands, {box}, &attributes, &scalars);
        EXPECT_EQ(ByteDifference(results.cuda[0], results.cpu[0]), "")
            << DTypeName(dtype) << " " << box << (swapped ? ", swapped" : "");
      }
    }
  }

  BothDevices both_;
};

TEST_F(RandomTest, UniformHasTheBitsOfTheCpu) {
  for (DType dtype : kFloating) {
    CompareCreation(kRandomUniform, dtype,
                    UniformScalars{.key = kKey, .low = -1.37, .high = 2.21, .batch_offset = 5});
  }
}

TEST_F(RandomTest, NormalHasTheBitsOfTheCpu) {
  for (DType dtype : kFloating) {
    CompareCreation(kRandomNormal, dtype,
                    NormalScalars{.key = kKey, .mean = 0.31, .stddev = 1.73, .batch_offset = 5});
  }
}

// Against the definition, not the CPU's kernel.
TEST_F(RandomTest, ValuesAreThoseOfTheDefinition) {
  const ShardBox box = {.global_shape = {5, 1003}, .offset = {2, 1}, .shape = {3, 1001}};
  const CreationAttributes attributes = {.dtype = DType::kF32, .shape = box.global_shape};
  const UniformScalars uniform = {.key = kKey};
  const NormalScalars normal = {.key = kKey};
  const auto uniforms =
      both_.Run(kRandomUniform, Nothing, {box}, &attributes, &uniform).cuda[0].ToVector<float>();
  const auto normals =
      both_.Run(kRandomNormal, Nothing, {box}, &attributes, &normal).cuda[0].ToVector<float>();
  for (int64_t i = 0; i < box.shape.num_elements(); ++i) {
    const uint64_t index = static_cast<uint64_t>((2 + i / 1001) * 1003 + 1 + i % 1001);
    ASSERT_EQ(uniforms[i], UniformAt(kKey, index)) << i;
    ASSERT_EQ(normals[i], NormalAt(kKey, index)) << i;
  }
}

TEST_F(RandomTest, BernoulliHasTheBitsOfTheCpu) {
  for (DType dtype : kAllDTypes) {
    CompareCreation(kBernoulli, dtype, BernoulliScalars{.key = kKey, .probability = 0.3, .batch_offset = 5});
  }
}

TEST_F(RandomTest, DropoutHasTheBitsOfTheCpu) {
  for (DType dtype : kFloating) {
    CompareMap(kDropout, dtype, DropoutScalars{.key = kKey, .rate = 0.37, .batch_offset = 5}, -3, 3);
  }
}

TEST_F(RandomTest, BernoulliOfHasTheBitsOfTheCpu) {
  for (DType dtype : kFloating)
    CompareMap(kBernoulliOf, dtype, KeyScalars{.key = kKey, .batch_offset = 5}, 0, 1);
}

// The CPU's kernel throws; one that does not wait cannot.
TEST_F(RandomTest, BernoulliOfGivesNanForWhatIsNoProbability) {
  const std::shared_ptr<Allocator> cuda = MakeAllocator({DeviceType::kCuda});
  ThreadPool pool(1);
  KernelContext context = {pool, cuda};
  const std::vector<float> p = {0.0f, -0.5f, 1.0f, NAN, 1.5f};
  const NoAttributes attributes;
  const KeyScalars scalars = {.key = kKey};
  const Piece piece = {Tensor::FromValues<float>({5}, p, cuda), WholeBox({5})};
  const auto y = RunKernel(kBernoulliOf, context, {piece}, {WholeBox({5})}, &attributes, &scalars);
  const std::vector<float> values = y[0].ToVector<float>();
  EXPECT_EQ(values[0], 0);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 1);
  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_TRUE(std::isnan(values[4]));
}

TEST_F(RandomTest, ArangeHasTheBitsOfTheCpu) {
  const ArangeScalars scalars = {.start = 0.1, .step = 0.7};
  for (DType dtype : kAllDTypes) {
    const CreationAttributes attributes = {.dtype = dtype, .shape = {1000}};
    const ShardBox box = {.global_shape = {1000}, .offset = {13}, .shape = {777}};
    const auto results = both_.Run(kArange, Nothing, {box}, &attributes, &scalars);
    EXPECT_EQ(ByteDifference(results.cuda[0], results.cpu[0]), "") << DTypeName(dtype);
  }
}

TEST_F(RandomTest, RefusesRatesOutsideTheirRange) {
  const std::shared_ptr<Allocator> cuda = MakeAllocator({DeviceType::kCuda});
  ThreadPool pool(1);
  KernelContext context = {pool, cuda};
  const Piece piece = {PatternTensor(cuda, DType::kF32, {4}, 0, 1), WholeBox({4})};
  const NoAttributes no_attributes;
  const DropoutScalars dropout = {.key = kKey, .rate = 1};
  EXPECT_EQ(InvalidArgumentMessage(
                [&] { RunKernel(kDropout, context, {piece}, {WholeBox({4})}, &no_attributes, &dropout); }),
            "dropout: expected a rate in [0, 1), got 1");
  const CreationAttributes attributes = {.shape = {4}};
  const BernoulliScalars bernoulli = {.key = kKey, .probability = 1.5};
  EXPECT_EQ(InvalidArgumentMessage(
                [&] { RunKernel(kBernoulli, context, {}, {WholeBox({4})}, &attributes, &bernoulli); }),
            "bernoulli: expected a probability in [0, 1], got 1.5");
}

}  // namespace
}  // namespace weft
