#include "ops/optimizer/block_quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "ops/optimizer/dynamic_map.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

Tensor Uniform(const Shape& shape, DType dtype, int seed, double low = -1, double high = 1) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

Tensor Codes(const Shape& shape) {
  return Tensor::FromValues<uint8_t>(shape, std::vector<uint8_t>(static_cast<size_t>(shape.num_elements())));
}

Tensor Scalar(float value) { return Tensor::FromValues<float>({}, {value}); }

// The block of an element, and its number among the scales, by the text of the header.
int64_t ScaleOf(const Shape& shape, int64_t element) {
  if (shape.ndim() == 1) return element / 256;
  const int64_t row = shape.num_elements() / shape[0];
  return element / row * ((row + 255) / 256) + element % row / 256;
}

TEST(DynamicMapTest, IsBitsandbytesMap) {
  // Of create_dynamic_map(signed=True) and (signed=False), by hand: the ends, zero and its neighbours.
  const DynamicMap with_sign = MakeDynamicMap(true), without = MakeDynamicMap(false);
  EXPECT_TRUE(std::is_sorted(with_sign.begin(), with_sign.end()));
  EXPECT_TRUE(std::is_sorted(without.begin(), without.end()));
  EXPECT_FLOAT_EQ(with_sign[0], -(0.1f + 0.9f * 63.5f / 64));
  EXPECT_EQ(with_sign[127], 0);
  EXPECT_FLOAT_EQ(with_sign[128], 0.55e-6f);
  EXPECT_FLOAT_EQ(with_sign[126], -0.55e-6f);
  EXPECT_EQ(with_sign[255], 1);
  EXPECT_EQ(without[0], 0);
  EXPECT_FLOAT_EQ(without[1], 0.325e-6f);
  EXPECT_FLOAT_EQ(without[2], 0.775e-6f);
  EXPECT_FLOAT_EQ(without[254], 0.1f + 0.9f * 127.5f / 128);
  EXPECT_EQ(without[255], 1);
}

TEST(DynamicMapTest, TheNearestCodeIsTheNearest) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap map = MakeDynamicMap(is_signed);
    const auto thresholds = MakeThresholds(map);
    for (int code = 0; code < 256; ++code) EXPECT_EQ(NearestCode(thresholds.data(), map[code]), code);
    for (const float x : {-2.0f, -0.5f, -1e-4f, -1e-9f, 0.0f, 3e-7f, 0.0123f, 0.77f, 0.999f, 2.0f}) {
      const float found = map[NearestCode(thresholds.data(), x)];
      for (const float value : map) EXPECT_LE(std::abs(x - found), std::abs(x - value)) << x;
    }
    EXPECT_EQ(NearestCode(thresholds.data(), std::numeric_limits<float>::quiet_NaN()), 0);
    // Without signs only 0 is 0.
    for (const float x : {1e-7f, 1e-9f, std::numeric_limits<float>::denorm_min()}) {
      EXPECT_EQ(map[NearestCode(thresholds.data(), x)], is_signed ? 0 : map[1]) << x;
    }
  }
}

const Shape kShapes[] = {{1}, {255}, {256}, {257}, {3, 300}, {2, 5, 60}, {4, 1}, {0, 7}, {5, 0}};

TEST(BlockQuantizeTest, ScalesAreTheLargestMagnitudesOfBlocks) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      const Tensor x = Uniform(shape, dtype, 1);
      std::vector<double> expected(static_cast<size_t>(BlockScalesShape(shape).num_elements()));
      const std::vector<double> values = x.ToVector<double>();
      for (size_t i = 0; i < values.size(); ++i) {
        double& largest = expected[static_cast<size_t>(ScaleOf(shape, static_cast<int64_t>(i)))];
        largest = std::max(largest, static_cast<double>(std::abs(static_cast<float>(values[i]))));
      }
      EXPECT_EQ(RunOp(kBlockMagnitudes, {x}).ToVector<double>(), expected) << shape.ToString() << dtype;
    }
  }
}

TEST(BlockQuantizeTest, ElementsComeBackToTheNearestValue) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap map = MakeDynamicMap(is_signed);
    for (const Shape& shape : kShapes) {
      const Tensor x = Uniform(shape, DType::kF32, 2, is_signed ? -1 : 0, 1);
      const Tensor q = Codes(shape), a = Uniform(BlockScalesShape(shape), DType::kF32, 3);
      const Tensor magnitudes = RunOp(kBlockMagnitudes, {x});
      RunAll(kQuantizeBlocks, {q, a, x, magnitudes, Scalar(1)}, {.is_signed = is_signed}, {},
             /*num_threads=*/2);
      EXPECT_TRUE(SameBits(a, magnitudes));
      const Tensor back = RunOp(kDequantizeBlocks, {q, a}, {.is_signed = is_signed});
      const std::vector<double> values = x.ToVector<double>(), scales = a.ToVector<double>();
      const std::vector<double> found = back.ToVector<double>();
      for (size_t i = 0; i < values.size(); ++i) {
        const double scale = scales[static_cast<size_t>(ScaleOf(shape, static_cast<int64_t>(i)))];
        double nearest = std::numeric_limits<double>::infinity();
        for (const float value : map) nearest = std::min(nearest, std::abs(values[i] - value * scale));
        EXPECT_LE(std::abs(values[i] - found[i]), nearest + 1e-7) << shape.ToString();
      }
    }
  }
}

TEST(BlockQuantizeTest, BlocksOfZerosAndSkips) {
  const Tensor zeros = Tensor::FromValues<float>({300}, std::vector<float>(300, 0));
  const Tensor q = Codes({300}), a = Tensor::FromValues<float>({2}, {7, 7});
  RunAll(kQuantizeBlocks, {q, a, zeros, RunOp(kBlockMagnitudes, {zeros}), Scalar(1)});
  EXPECT_EQ(a.ToVector<float>(), (std::vector<float>{0, 0}));
  EXPECT_EQ(q.ToVector<uint8_t>(), std::vector<uint8_t>(300, 127));
  EXPECT_EQ(RunOp(kDequantizeBlocks, {q, a}).ToVector<float>(), std::vector<float>(300, 0));
  const Tensor x = Uniform({300}, DType::kF32, 4);
  for (const float s : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    RunAll(kQuantizeBlocks, {q, a, x, RunOp(kBlockMagnitudes, {x}), Scalar(s)});
    EXPECT_EQ(a.ToVector<float>(), (std::vector<float>{0, 0}));
    EXPECT_EQ(q.ToVector<uint8_t>(), std::vector<uint8_t>(300, 127));
  }
}

TEST(BlockQuantizeTest, MisuseIsNamed) {
  const Tensor x = Uniform({2, 300}, DType::kF32, 1), a = Uniform({2, 2}, DType::kF32, 1);
  EXPECT_EQ(MessageOf([&] { RunOp(kBlockMagnitudes, {Scalar(1)}); }),
            "block_magnitudes: expected x of a floating dtype and at least one dim, got f32[]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kDequantizeBlocks, {x, a});
            }),
            "dequantize_blocks: expected q of u8 and at least one dim, got f32[2, 300]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kDequantizeBlocks, {Codes({2, 300}), x});
            }),
            "dequantize_blocks: expected a, the scales of [2, 300], f32[2, 2], got f32[2, 300]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kQuantizeBlocks, {Codes({2, 300}), a, Uniform({600}, DType::kF32, 1), a, Scalar(1)});
            }),
            "quantize_blocks: expected x of q's shape [2, 300], got f32[600]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kQuantizeBlocks, {Codes({2, 300}), a, x, a, a});
            }),
            "quantize_blocks: expected s a scalar of f32 or f64, got f32[2, 2]");
}

}  // namespace
}  // namespace weft
