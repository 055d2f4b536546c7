#include "dtensor/nn/linear.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// y[i, o] = sum over k of x[i, k] w[k, o], plus b[o]; all dims of a kind merged.
std::vector<double> NaiveLinear(const std::vector<double>& x, const std::vector<double>& w,
                                const std::vector<double>& b, size_t in) {
  const size_t out = w.size() / in;
  std::vector<double> y(x.size() / in * out);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = b.empty() ? 0 : b[i % out];
    for (size_t k = 0; k < in; ++k) y[i] += x[i / out * in + k] * w[k * out + i % out];
  }
  return y;
}

// Gives the bias elements other than zero.
void SetBias(Linear& linear, const Tensor& value) {
  linear.bias->Load(DTensor::Distribute(linear.context(), value, Layout(value.ndim(), 0)));
}

struct Extents {
  Shape in;
  Shape out;
  Shape leading;
};

TEST(LinearTest, ContractsTheLastDimsWithAnyNumberOfLeadingOnes) {
  for (const Extents& e :
       {Extents{{5}, {3}, {4}}, Extents{{5}, {3}, {2, 3}}, Extents{{5}, {3}, {}},
        Extents{{4}, {3, 2, 2}, {2, 3}}, Extents{{2, 3}, {4}, {2, 2}}, Extents{{1}, {1}, {0}}}) {
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      Module root;
      Linear linear(&root, "linear", e.in, e.out);
      Materialize(root, context, {.dtype = DType::kF64});
      const Tensor bias = RandomF64(e.out, 3);
      SetBias(linear, bias);
      Shape x_shape = e.leading;
      for (int64_t extent : e.in) x_shape.push_back(extent);
      const Tensor x = RandomF64(x_shape, 1);
      const DTensor y = linear(DTensor::Distribute(context, x, Layout(x.ndim(), 0)));
      Shape y_shape = e.leading;
      for (int64_t extent : e.out) y_shape.push_back(extent);
      const Tensor expected = Tensor::FromValues<double>(
          y_shape, NaiveLinear(x.ToVector<double>(), linear.weight.at_rest().ToLocal().ToVector<double>(),
                               bias.ToVector<double>(), static_cast<size_t>(e.in.num_elements())));
      EXPECT_TRUE(AllClose(y.ToLocal(), expected, 1e-14)) << e.in << e.out << e.leading;
    });
  }
}

TEST(LinearTest, AnInputActivationIsGeluBefore) {
  for (bool bias : {true, false}) {
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      Module root;
      Linear linear(&root, "linear", {2, 3}, {4}, {.bias = bias, .gelu_input = true});
      Materialize(root, context, {.dtype = DType::kF64});
      if (bias) SetBias(linear, RandomF64({4}, 3));
      const DTensor x = Lay(context, RandomF64({5, 2, 3}, 1), "[-, -, -]").RequiresGrad();
      const DTensor same = Lay(context, RandomF64({5, 2, 3}, 1), "[-, -, -]").RequiresGrad();
      const DTensor y = linear(x);
      const DTensor b = bias ? linear.bias->at_rest() : DTensor();
      const DTensor expected = Contract(Gelu(same), "bhe", linear.weight.at_rest(), "hed", "bd", b);
      EXPECT_TRUE(SameBits(y.ToLocal(), expected.ToLocal())) << bias;
      Backward(Sum(Square(y)));
      Backward(Sum(Square(expected)));
      EXPECT_TRUE(SameBits(x.grad().ToLocal(), same.grad().ToLocal())) << bias;
    });
  }
}

TEST(LinearTest, SpecsSayWhatAPlanMaySplit) {
  Module root;
  Linear plain(&root, "plain", 5, 3);
  EXPECT_EQ(plain.weight.spec(), (ParameterSpec{.shape = {5, 3},
                                                .initializer = Initializer::Normal(0, 0.02),
                                                .shard_dims = {.column = 1, .row = 0},
                                                .fans = Fans{.in = 5, .out = 3}}));
  EXPECT_EQ(plain.bias->spec(), (ParameterSpec{.shape = {3}, .shard_dims = {.column = 0}, .decays = false}));
  // qkv [d, 3, h, e]: columns are heads; proj [h, e, d]: rows are.
  Linear qkv(&root, "qkv", {8}, {3, 2, 4}, {.column_dim = 1, .even_split = true});
  EXPECT_EQ(qkv.weight.spec().shape, Shape({8, 3, 2, 4}));
  EXPECT_EQ(qkv.weight.spec().shard_dims, (ShardDims{.column = 2, .row = 0, .even_split = true}));
  EXPECT_EQ(qkv.bias->spec().shard_dims, (ShardDims{.column = 1, .even_split = true}));
  Linear proj(&root, "proj", {2, 4}, {8}, {.bias = false, .weight = Initializer::Constant(1)});
  EXPECT_EQ(proj.weight.spec().shard_dims, (ShardDims{.column = 2, .row = 0}));
  EXPECT_EQ(proj.weight.spec().initializer, Initializer::Constant(1));
  EXPECT_FALSE(proj.bias.has_value());
  EXPECT_EQ(proj.parameters().size(), 1u);
}

TEST(LinearTest, AnotherInputIsRefused) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    Linear linear(&root, "up", {2, 3}, {4});
    Materialize(root, context);
    for (const Shape& shape : {Shape{2, 4}, Shape{3}, Shape{3, 2}, Shape{5, 3, 2}, Shape{}}) {
      const DTensor x = Full(context, DType::kF32, shape, 1);
      EXPECT_EQ(
          ErrorOf([&] { linear(x); }),
          absl::StrCat("linear 'up': expected an input whose last dims are [2, 3], got ", x.ToString()));
    }
    EXPECT_THAT(ErrorOf([&] {
                  linear(Full(context, DType::kF64, {2, 3}, 1));
                }),
                HasSubstr("must have one dtype"));
  });
}

}  // namespace
}  // namespace weft
