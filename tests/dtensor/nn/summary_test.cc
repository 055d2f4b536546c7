#include "dtensor/nn/summary.h"

#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/layers/layers.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::HasSubstr;

// [n, 3, 8, 8] -> [n, 10]
class Net : public Module {
 public:
  Net() {
    features.Add<nn::Conv2d>(3, 5, 3, nn::Conv2dOptions{.padding = {1, 1}});
    features.Add<BatchNorm2d>(5);
    features.Add<nn::Relu>();
  }
  Sequential features{this, "features"};
  Linear head{this, "head", 5, 10};

 protected:
  DTensor Forward(const DTensor& x) override { return head(Mean(features(x), {2, 3})); }
};

// Counts by hand: the convolution sums 27 products for each of 5 x 64 outputs per image, the head 5 for each of 10.
constexpr int64_t kParameters = 5 * 27 + 5 + 5 + 5 + 50 + 10;
constexpr double kFlopsPerImage = 2.0 * (27 * 5 * 64 + 50);

TEST(SummaryTest, SaysWhatAModelIs) {
  Net net;
  net.head.bias->set_trainable(false);
  const ModelSummary described = Summarize(net);
  EXPECT_EQ(described.num_parameters(), kParameters);
  EXPECT_EQ(described.num_trainable(), kParameters - 10);
  EXPECT_EQ(described.num_buffer_elements(), 11);
  EXPECT_EQ(described.bytes_per_rank(), 0);
  EXPECT_EQ(described.ToTable(),
            R"(module                 type         shape         layout  elements  bytes per rank  flops
(model)                Net
features               Sequential
features.0             Conv2d
  weight                            [5, 3, 3, 3]               135
  bias                              [5]                          5
features.1             BatchNorm2d
  weight                            [5]                          5
  bias                              [5]                          5
  running_mean         buffer       [5]                          5
  running_var          buffer       [5]                          5
  num_batches_tracked  buffer       []                           1
features.2             Relu
head                   Linear
  weight                            [5, 10]                     50
  bias                 frozen       [10]                        10
210 parameters, 200 trained; 11 elements of buffers
)");
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net spread;
    Parallelize(spread, context, {{"", FullyShard("dp")}});
    const DTensor x =
        Full(context, DType::kF32, {6, 3, 8, 8}, 1, Layout::Parse("[dp, -, -, -]", context->mesh()));
    const ModelSummary summary = Summarize(spread, [&] { spread(x); });
    EXPECT_EQ(summary.num_parameters(), kParameters);
    EXPECT_EQ(summary.flops(), 6 * kFlopsPerImage);
    // Of 5 rows a rank has 3 at most, of 10 five; the largest dim that divides, 10, is the head's second. Buffers are whole.
    const int64_t elements = 3 * 27 + 3 + 3 + 3 + 25 + 5 + 5 + 5;
    EXPECT_EQ(summary.bytes_per_rank(), 4 * elements + 8);
    EXPECT_THAT(summary.ToTable(), HasSubstr("  weight                            f32[5, 10]       [-, dp]   "
                                             "           50             100\n"));
    EXPECT_THAT(summary.ToTable(), HasSubstr("528 bytes per rank at rest; 104280 flops per forward"));
    // Statistics stand still.
    EXPECT_EQ(spread.features.Get<BatchNorm2d>(1).num_batches_tracked->Value().Item(), 0);
    EXPECT_TRUE(context->state().training());
  });
}

// 2 x the weights of products per token, and 2 s^2 d per sequence and layer of causal attention.
TEST(SummaryTest, CountsATransformer) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const GptConfig config = {.vocabulary = 19, .context = 8, .layers = 3, .heads = 2, .dim = 16};
    Gpt gpt(config);
    gpt.set_name("gpt");
    Materialize(gpt, context);
    const DTensor tokens = Full(context, DType::kI32, {2, 8}, 1);
    const ModelSummary summary = Summarize(gpt, [&] { gpt(tokens); });
    const double products = 2.0 * (2 * 8) * (3 * 12 * 16 * 16 + 16 * 19);
    const double attention = 2.0 * 2 * 8 * 8 * 16 * 3;
    EXPECT_EQ(summary.flops(), products + attention);
  });
}

}  // namespace
}  // namespace weft
