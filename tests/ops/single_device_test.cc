#include "tests/ops/single_device.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor F64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}
std::vector<double> Values64(const Tensor& tensor) { return tensor.ToVector<double>(); }

TEST(SingleDeviceTest, RunsAnOp) {
  const Tensor x = F64({2, 2}, {1, 2, 3, 4});
  EXPECT_THAT(Values64(RunOp(kToyMatmul, {x, x})), ElementsAre(7, 10, 15, 22));
  EXPECT_THAT(Values64(RunOp(kToyMatmul, {x, x}, {.transpose_x = true})), ElementsAre(10, 14, 14, 20));
}

TEST(SingleDeviceTest, RunsOpsInPlaceViewsAndSeveralOutputs) {
  const Tensor p = F64({2}, {1, 2});
  const Tensor result = RunOp(kToySgd, {p, F64({2}, {10, 20})}, {}, {.rate = 0.5});
  EXPECT_THAT(Values64(p), ElementsAre(-4, -8));
  EXPECT_EQ(result.data(), p.data());
  const Tensor x = F64({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor view = RunOp(kToyTranspose, {x});
  EXPECT_EQ(view.data(), x.data());
  EXPECT_THAT(Values64(view), ElementsAre(1, 4, 2, 5, 3, 6));
  const std::vector<Tensor> moments = RunAll(kToyMoments, {x});
  EXPECT_THAT(Values64(moments[0]), ElementsAre(6, 15));
  EXPECT_THAT(Values64(moments[1]), ElementsAre(14, 77));
  EXPECT_THAT(Values64(RunOp(kToySum, {p, p, p})), ElementsAre(-12, -24));
  EXPECT_THAT(Values64(RunOp(kToyIota, {}, {.rows = 3})), ElementsAre(0, 1, 2));
}

TEST(SingleDeviceTest, RunsKernelsOnPieces) {
  const Tensor ids = Tensor::FromValues<int64_t>({3}, std::vector<int64_t>{0, 2, 1});
  const Tensor table = F64({3, 1}, {5, 6, 7});
  const Piece piece = SplitPiece(table, 0, {1, 2});
  EXPECT_EQ(piece.box, (ShardBox{{3, 1}, {1, 0}, {2, 1}}));
  EXPECT_THAT(Values64(piece.tensor), ElementsAre(6, 7));
  const std::vector<Tensor> y = RunSharded(kToyEmbedding, {WholePiece(ids), piece}, {WholeBox({3, 1})});
  EXPECT_THAT(Values64(y[0]), ElementsAre(0, 7, 6));
  EXPECT_THAT(Values64(RunSharded(kToyIota, {}, {SplitBox({5}, 0, {3, 2})}, {.rows = 5})[0]),
              ElementsAre(3, 4));
}

TEST(SingleDeviceTest, RunsBackward) {
  const Tensor x = F64({1, 2}, {1, 2});
  const Tensor w = F64({2, 1}, {3, 4});
  const std::vector<Tensor> gradients = Backward(kToyMatmul, {x, w}, {F64({1, 1}, {10})});
  EXPECT_THAT(Values64(gradients[0]), ElementsAre(30, 40));
  EXPECT_THAT(Values64(gradients[1]), ElementsAre(10, 20));
  const Tensor ids = Tensor::FromValues<int64_t>({2}, std::vector<int64_t>{2, 2});
  const std::vector<Tensor> sparse =
      Backward(kToyEmbedding, {ids, F64({3, 1}, {0, 0, 0})}, {F64({2, 1}, {1, 5})});
  EXPECT_FALSE(sparse[0].defined()) << "indices have no gradient";
  EXPECT_THAT(Values64(sparse[1]), ElementsAre(0, 0, 6));
}

TEST(SingleDeviceTest, RunsDecompositions) {
  const NoAttributes none;
  const std::vector<Tensor> y = RunDecomposedErased(kToyNormalize, {F64({1, 2}, {1, 3})}, &none, &none);
  EXPECT_THAT(Values64(y[0]), ElementsAre(0.25, 0.75));
}

TensorTypes Same(absl::Span<const TensorType> types, const NoAttributes&) { return {types[0]}; }
std::string Rule(absl::Span<const TensorType>, const NoAttributes&) { return "a -> a"; }
using Context = GradContext<NoAttributes, NoScalars>;

// toy_relu's kernel does not belong to these, so each gets one that leaves the output as it is.
void Zero(const KernelCall<NoAttributes, NoScalars>&) {}
constinit const Op<> kNoKernel = {{.name = "no_kernel", .operands = "x", .infer = Same, .rule = Rule}};
constinit const Op<> kUnsaved = {{
    .name = "unsaved",
    .operands = "x",
    .infer = Same,
    .rule = Rule,
    .saves = "y",
    .backward = +[](Context& c) { c.SetGrad(0, c.saved("x")); },
}};
constinit const Op<> kTwice = {
    {.name = "twice", .operands = "x", .infer = Same, .rule = Rule, .backward = +[](Context& c) {
       c.SetGrad(0, c.grad()), c.SetGrad(0, c.grad());
     }}};
constinit const Op<> kUnasked = {
    {.name = "unasked", .operands = "x", .infer = Same, .rule = Rule, .backward = +[](Context& c) {
       c.SetGrad(0, c.grad());
     }}};
constinit const Op<> kOtherType = {
    {.name = "other_type", .operands = "x", .infer = Same, .rule = Rule, .backward = +[](Context& c) {
       c.SetGrad(0, c.Emit(kToyIota, {}, {.rows = 9}));
     }}};
const RegisterKernel kUnsavedCpu(kUnsaved, DeviceType::kCpu, Zero);
const RegisterKernel kTwiceCpu(kTwice, DeviceType::kCpu, Zero);
const RegisterKernel kUnaskedCpu(kUnasked, DeviceType::kCpu, Zero);
const RegisterKernel kOtherTypeCpu(kOtherType, DeviceType::kCpu, Zero);

TEST(SingleDeviceTest, HoldsOpsToTheirDeclaration) {
  const Tensor x = F64({2}, {1, 2});
  const NoAttributes none;
  EXPECT_EQ(MessageOf([&] { RunOp(kNoKernel, {x}); }), "no_kernel: no kernel on device cpu");
  EXPECT_THAT(MessageOf([&] { Backward(kUnsaved, {x}, {x}); }),
              HasSubstr("unsaved reads 'x' in backward and saves 'y'"));
  EXPECT_THAT(MessageOf([&] { Backward(kTwice, {x}, {x}); }),
              HasSubstr("twice delivers the gradient of operand 0 twice"));
  EXPECT_THAT(MessageOf([&] { RunBackwardErased(kUnasked, {x}, {x}, &none, &none, {false}); }),
              HasSubstr("unasked delivers the gradient of operand 0, which is not wanted"));
  EXPECT_THAT(MessageOf([&] { Backward(kOtherType, {x}, {x}); }),
              HasSubstr("delivers a gradient f64[9] for operand 0 of f64[2]"));
}

TEST(TensorCompareTest, FindsTheFirstDifference) {
  const double nan = std::nan("");
  EXPECT_TRUE(AllClose(F64({3}, {1, nan, INFINITY}), F64({3}, {1 + 1e-12, nan, INFINITY}), 1e-11));
  EXPECT_FALSE(AllClose(F64({1}, {nan}), F64({1}, {0}), 1e9));
  EXPECT_FALSE(AllClose(F64({1}, {INFINITY}), F64({1}, {-INFINITY}), 1e9));
  EXPECT_FALSE(AllClose(F64({1, 2}, {1, 2}), F64({2}, {1, 2}), 0));
  EXPECT_THAT(
      AllClose(F64({3}, {1, 3, 4}), F64({3}, {1, 2, 3}), 0.1).message(),
      HasSubstr("2 of 3 elements of f64[3] differ, the first at row-major index 1: got 3, expected 2"));
  EXPECT_FALSE(SameBits(F64({1}, {0.0}), F64({1}, {-0.0})));
  EXPECT_TRUE(SameBits(F64({1}, {nan}), F64({1}, {nan})));
}

}  // namespace
}  // namespace weft
