#include "ops/shape/permute.h"

#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "ops/shape/reshape.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

Tensor Iota(const Shape& shape) {
  std::vector<int32_t> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromValues<int32_t>(shape, values);
}

TEST(PermuteTest, IsAViewOfTheSameElements) {
  const Tensor x = Iota({2, 3, 4});
  const Tensor y = RunOp(kPermute, {x}, {{2, 0, 1}});
  EXPECT_EQ(y.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(y.data(), x.data());
  const std::vector<int32_t> elements = y.ToVector<int32_t>();
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      for (int k = 0; k < 3; ++k) EXPECT_EQ(elements[(i * 2 + j) * 3 + k], (j * 3 + k) * 4 + i);
    }
  }
}

TEST(PermuteTest, EmptyAndScalar) {
  EXPECT_EQ(RunOp(kPermute, {Iota({0, 3})}, {{1, 0}}).shape(), (Shape{3, 0}));
  EXPECT_EQ(RunOp(kPermute, {Iota({})}).ToVector<int32_t>(), std::vector<int32_t>{0});
}

// Large enough for blocks on several threads; neither extent is a whole number of blocks.
TEST(PermuteTest, LargeViewsAreMadeDense) {
  const Tensor x = Iota({3, 270, 517});
  for (const PermuteAttributes& a : {PermuteAttributes{{0, 2, 1}}, PermuteAttributes{{2, 1, 0}},
                                     PermuteAttributes{{2, 0, 1}}, PermuteAttributes{{1, 0, 2}}}) {
    const Tensor view = RunOp(kPermute, {x}, a);
    const ReshapeAttributes flat = {{view.num_elements()}};
    const std::vector<int32_t> expected = view.ToVector<int32_t>();
    EXPECT_EQ(RunOp(kReshape, {view}, flat).ToVector<int32_t>(), expected);
    EXPECT_EQ(RunOp(kReshape, {view}, flat, {}, /*num_threads=*/3).ToVector<int32_t>(), expected);
  }
}

std::string InferError(const Shape& x, const PermuteAttributes& a) {
  try {
    kPermute.Infer({{DType::kF32, x}}, &a);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(PermuteTest, Errors) {
  EXPECT_EQ(InferError({2, 3}, {{0, 0}}),
            "permute: expected an order of dims 0 to 1 for f32[2, 3], got {0, 0}");
  EXPECT_EQ(InferError({2, 3}, {{0, 1, 2}}),
            "permute: expected an order of dims 0 to 1 for f32[2, 3], got {0, 1, 2}");
  EXPECT_EQ(InferError({}, {{0}}), "permute: expected an empty order for f32[], got {0}");
}

}  // namespace
}  // namespace weft
