#include "dtensor/nn/embedding.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// A table that is used twice: looked up, and scored against.
class Tied : public Module {
 public:
  Embedding wte{this, "wte", 7, 3};
  TiedHead head{this, "head", wte};

  DTensor operator()(const DTensor& tokens) {
    const ModuleCall call(*this);
    return head(wte(tokens));
  }
};

DTensor Tokens(const IntrusivePtr<MeshContext>& context, absl::string_view layout) {
  const Tensor tokens = Tensor::FromValues<int32_t>({2, 3}, {0, 6, 3, 3, 1, 6});
  return DTensor::Distribute(context, tokens, Layout::Parse(layout, context->mesh()));
}

TEST(EmbeddingTest, LooksUpRows) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Tied model;
    Materialize(model, context, {.dtype = DType::kF64});
    const std::vector<double> table = model.wte.weight.at_rest().ToLocal().ToVector<double>();
    const DTensor y = model.wte(Tokens(context, "[-, -]"));
    EXPECT_EQ(y.ToString(), "f64[2, 3, 3] [-, -, -]");
    const int64_t tokens[] = {0, 6, 3, 3, 1, 6};
    const std::vector<double> rows = y.ToLocal().ToVector<double>();
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], table[tokens[i / 3] * 3 + i % 3]);
    EXPECT_EQ(model.wte.weight.spec().shard_dims, (ShardDims{.vocabulary = 0}));
  });
}

TEST(EmbeddingTest, TheHeadOwnsNothingAndItsGradientCounts) {
  Tensor expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Tied model;
    EXPECT_EQ(model.AllParameters().size(), 1u);
    Materialize(model, context, {.dtype = DType::kF64});
    // The sum over tokens t and classes v of w_t w_v: its gradient is count(r) sum_v w_v + sum_t w_t.
    const std::vector<double> w = model.wte.weight.at_rest().ToLocal().ToVector<double>();
    const double counts[] = {1, 1, 0, 2, 0, 0, 2};
    double column[3] = {}, looked_up[3] = {};
    for (int i = 0; i < 21; ++i) {
      column[i % 3] += w[i];
      looked_up[i % 3] += counts[i / 3] * w[i];
    }
    std::vector<double> gradient(21);
    for (int i = 0; i < 21; ++i) gradient[i] = counts[i / 3] * column[i % 3] + looked_up[i % 3];
    expected = Tensor::FromValues<double>({7, 3}, gradient);
    const DTensor scores = model(Tokens(context, "[-, -]"));
    EXPECT_EQ(scores.ToString(), "f64[2, 3, 7] [-, -, -]");
    Backward(Sum(scores));
    EXPECT_TRUE(AllClose(model.wte.weight.grad().ToLocal(), expected, 1e-14));
  });
  // Vocabulary-parallel over tp, data-parallel over dp: the tied gradient is reduced over dp once.
  OnMesh("dp=2,tp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Tied model;
    for (Module* module : model.AllModules()) module->Bind(context);
    const Layout split = Layout::Parse("[tp, -]", context->mesh());
    model.wte.weight.Materialize(context, DType::kF64, DType::kF64, {split, split});
    model.wte.set_border({.input = {}, .output = {{.axis = 1, .value = Replicate(), .gradient = {}}}});
    const DTensor scores = model(Tokens(context, "[dp, -]"));
    EXPECT_EQ(LayoutText(scores), "[dp, -, tp]");
    EXPECT_EQ(LedgerText(*context), "all_reduce tp activation");  // of the hidden states; logits stay split
    context->world().ledger().Clear();
    Backward(Sum(scores));
    // What reaches the table from the look-up is still Partial over tp, so few are its rows; then once over
    // dp.
    EXPECT_EQ(LedgerText(*context), "reduce_scatter tp grad, all_reduce dp grad");
    EXPECT_TRUE(AllClose(model.wte.weight.grad().FullTensor(), expected, 1e-13));
  });
}

TEST(EmbeddingTest, Misuse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Tied model;
    Materialize(model, context);
    EXPECT_EQ(ErrorOf([&] { model.wte(Full(context, DType::kF32, {2}, 1)); }),
              "embedding: tokens must be i32 or i64, got f32[2]; in embedding(f32[2] [-], f32[7, 3] [-, -])");
    EXPECT_EQ(ErrorOf([&] { model.head(Full(context, DType::kF32, {}, 1)); }),
              "tied head 'head': expected [..., d], got f32[] []");
  });
}

}  // namespace
}  // namespace weft
