#include "dtensor/nn/attention.h"

#include <cmath>

#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

constexpr int64_t kB = 2, kS = 3, kD = 4, kH = 2, kE = 2;

// The module by loops over [b, s, d], biases zero: softmax over the past of q k / sqrt(e), applied to v,
// projected.
std::vector<double> NaiveAttention(const std::vector<double>& x, const std::vector<double>& qkv,
                                   const std::vector<double>& proj) {
  const auto feature = [&](int64_t b, int64_t s, int64_t t, int64_t h, int64_t e) {
    double sum = 0;
    for (int64_t d = 0; d < kD; ++d) {
      sum += x[(b * kS + s) * kD + d] * qkv[((d * 3 + t) * kH + h) * kE + e];
    }
    return sum;
  };
  std::vector<double> y(x.size(), 0);
  for (int64_t b = 0; b < kB; ++b) {
    for (int64_t s = 0; s < kS; ++s) {
      for (int64_t h = 0; h < kH; ++h) {
        std::vector<double> weights;
        double total = 0;
        for (int64_t past = 0; past <= s; ++past) {
          double score = 0;
          for (int64_t e = 0; e < kE; ++e) score += feature(b, s, 0, h, e) * feature(b, past, 1, h, e);
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kE))));
          total += weights.back();
        }
        for (int64_t e = 0; e < kE; ++e) {
          double attended = 0;
          for (int64_t past = 0; past <= s; ++past)
            attended += weights[past] / total * feature(b, past, 2, h, e);
          for (int64_t d = 0; d < kD; ++d) y[(b * kS + s) * kD + d] += attended * proj[(h * kE + e) * kD + d];
        }
      }
    }
  }
  return y;
}

TEST(AttentionTest, IsTheNaiveLoops) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    CausalSelfAttention attention(&root, "attn", kD, kH, Initializer::Normal(0, 1));
    Materialize(root, context, {.dtype = DType::kF64});
    attention.qkv.weight.Load(Lay(context, RandomF64({kD, 3, kH, kE}, 2), "[-, -, -, -]"));
    const Tensor x = RandomF64({kB, kS, kD}, 1);
    const std::vector<double> expected =
        NaiveAttention(x.ToVector<double>(), attention.qkv.weight.at_rest().ToLocal().ToVector<double>(),
                       attention.proj.weight.at_rest().ToLocal().ToVector<double>());
    const DTensor y = attention(Lay(context, x, "[-, -, -]"));
    EXPECT_TRUE(AllClose(y.ToLocal(), Tensor::FromValues<double>({kB, kS, kD}, expected), 1e-13));
  });
}

// Heads split over tp, batch over dp: nothing moves but the sum after the projection.
TEST(AttentionTest, SplitHeadsStayWhereTheyAre) {
  const Tensor x = RandomF64({kB, kS, kD}, 1);
  Tensor expected;
  const auto build = [](const IntrusivePtr<MeshContext>& context, CausalSelfAttention& attention,
                        const char* qkv, const char* qkv_bias, const char* proj) {
    const auto lay = [&](Parameter& parameter, const char* text) {
      const Layout layout = Layout::Parse(text, context->mesh());
      parameter.Materialize(context, DType::kF64, DType::kF64, {layout, layout});
    };
    for (Module* module : attention.AllModules()) module->Bind(context);
    lay(attention.qkv.weight, qkv);
    lay(*attention.qkv.bias, qkv_bias);
    lay(attention.proj.weight, proj);
    lay(*attention.proj.bias, "[-]");
  };
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Module root;
    CausalSelfAttention attention(&root, "attn", kD, kH);
    build(context, attention, "[-, -, -, -]", "[-, -, -]", "[-, -, -]");
    expected = attention(Lay(context, x, "[-, -, -]")).FullTensor();
  });
  OnMesh("dp=2,tp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Module root;
    CausalSelfAttention attention(&root, "attn", kD, kH);
    build(context, attention, "[-, -, tp, -]", "[-, tp, -]", "[tp, -, -]");
    const DTensor y = attention(Lay(context, x, "[dp, -, -]"));
    EXPECT_EQ(LedgerText(*context), "");
    EXPECT_EQ(LayoutText(y), "[dp, -, -] P{tp}");
    EXPECT_TRUE(AllClose(y.FullTensor(), expected, 1e-14));
  });
}

TEST(AttentionTest, HeadsMustDivideTheModelDim) {
  Module root;
  EXPECT_EQ(ErrorOf([&] { CausalSelfAttention(&root, "attn", 4, 3); }),
            "attention: 3 heads do not divide the model dim 4");
  EXPECT_EQ(ErrorOf([&] { CausalSelfAttention(&root, "attn", 4, 0); }),
            "attention: 0 heads do not divide the model dim 4");
  EXPECT_TRUE(root.children().empty());  // what failed has left no trace
}

}  // namespace
}  // namespace weft
