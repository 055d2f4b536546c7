#include "dtensor/nn/gpt.h"

#include <cmath>
#include <random>

#include "dtensor/autograd/backward.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

constexpr GptConfig kTiny = {
    .vocabulary = 11, .context = 6, .layers = 2, .heads = 2, .dim = 8, .dropout = 0.1};

DTensor Tokens(const IntrusivePtr<MeshContext>& context, const Shape& shape, int64_t vocabulary,
               int64_t shift, const Layout& layout) {
  std::vector<int64_t> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<int64_t>(i * i) + shift) % vocabulary;
  return DTensor::Distribute(context, Tensor::FromValues<int64_t>(shape, values), layout);
}

DTensor MeanLoss(Gpt& model, const Layout& batch) {
  const int64_t vocabulary = model.config().vocabulary;
  const IntrusivePtr<MeshContext>& context = model.context();
  return model
      .Loss(Tokens(context, {3, 5}, vocabulary, 2, batch), Tokens(context, {3, 5}, vocabulary, 3, batch))
      .Mean();
}

// Larger weights than at the start, so that gradients say something.
void Widen(Gpt& model) {
  for (Parameter* parameter : model.AllParameters()) {
    const NoGradGuard no_grad(model.context()->state());
    const DTensor noise = RandomNormal(model.context(), DType::kF64, parameter->spec().shape,
                                       parameter->layouts().at_rest, parameter->path());
    parameter->Load(parameter->at_rest() + 0.2 * noise);
  }
}

int64_t NumParameters(Gpt& model) {
  int64_t count = 0;
  for (const Parameter* parameter : model.AllParameters()) count += parameter->spec().shape.num_elements();
  return count;
}

// Described, not allocated. The published number of GPT-2 small.
TEST(GptTest, Gpt2SmallHasItsPublishedNumberOfParameters) {
  Gpt model(GptConfig::Gpt2_124M());
  EXPECT_EQ(NumParameters(model), 124'439'808);
  GptConfig untied = GptConfig::Gpt2_124M();
  untied.tied_head = false;
  Gpt larger(untied);
  EXPECT_EQ(NumParameters(larger), 124'439'808 + 50257 * 768);
}

TEST(GptTest, ParametersAndTheirShapes) {
  GptConfig config = kTiny;
  config.layers = 1;
  Gpt model(config);
  std::vector<std::string> specs;
  for (const Parameter* parameter : model.AllParameters()) {
    specs.push_back(absl::StrCat(parameter->path(), " ", parameter->spec().shape.ToString()));
  }
  EXPECT_THAT(specs,
              testing::UnorderedElementsAre(
                  "wte.weight [11, 8]", "wpe [6, 8]", "blocks.0.ln_1.weight [8]", "blocks.0.ln_1.bias [8]",
                  "blocks.0.attn.qkv.weight [8, 3, 2, 4]", "blocks.0.attn.qkv.bias [3, 2, 4]",
                  "blocks.0.attn.proj.weight [2, 4, 8]", "blocks.0.attn.proj.bias [8]",
                  "blocks.0.ln_2.weight [8]", "blocks.0.ln_2.bias [8]", "blocks.0.mlp.up.weight [8, 32]",
                  "blocks.0.mlp.up.bias [32]", "blocks.0.mlp.down.weight [32, 8]",
                  "blocks.0.mlp.down.bias [8]", "ln_f.weight [8]", "ln_f.bias [8]", "head.weight [8, 11]"));
}

// As in nanoGPT: whatever shape this model gives its biases.
TEST(GptTest, WeightDecayShrinksMatricesAndEmbeddings) {
  GptConfig config = kTiny;
  config.layers = 1;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Gpt model(config);
    Materialize(model, context);
    for (Parameter* parameter : model.AllParameters()) {
      parameter->Load(Full(context, DType::kF32, parameter->spec().shape, 1));
      parameter->SetGrad(Full(context, DType::kF32, parameter->spec().shape, 0));
    }
    AdamW(model.AllParameters(), {.weight_decay = 0.5}).Step(/*lr=*/0.1);
    std::vector<std::string> shrunk;
    for (const Parameter* parameter : model.AllParameters()) {
      if (parameter->at_rest().ToLocal().ToVector<float>()[0] < 1) shrunk.push_back(parameter->path());
    }
    EXPECT_THAT(shrunk, testing::UnorderedElementsAre("wte.weight", "wpe", "blocks.0.attn.qkv.weight",
                                                      "blocks.0.attn.proj.weight", "blocks.0.mlp.up.weight",
                                                      "blocks.0.mlp.down.weight", "head.weight"));
  });
}

TEST(GptTest, LogitsAndTheLossOfAnUntrainedModel) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    for (bool tied : {false, true}) {
      Gpt model({.vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .dim = 32, .tied_head = tied});
      Materialize(model, context);
      const DTensor tokens = Tokens(context, {4, 16}, 61, 2, Layout(2, 0));
      EXPECT_EQ(model(tokens).ToString(), "f32[4, 16, 61] [-, -, -]");
      const LossSum loss = model.Loss(tokens, Tokens(context, {4, 16}, 61, 5, Layout(2, 0)));
      EXPECT_EQ(loss.count.Item(), 64);
      EXPECT_NEAR(loss.Mean().Item(), std::log(61), 0.1);
    }
  });
}

// A token's logits depend on those before it alone.
TEST(GptTest, IsCausal) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Gpt model(kTiny);
    Materialize(model, context, {.dtype = DType::kF64});
    context->state().set_training(false);
    const auto logits = [&](std::vector<int64_t> tokens) {
      return model(DTensor::Distribute(context, Tensor::FromValues<int64_t>({1, 4}, tokens), Layout(2, 0)))
          .ToLocal();
    };
    const Tensor a = logits({1, 2, 3, 4});
    const Tensor b = logits({1, 2, 9, 4});
    EXPECT_TRUE(SameBits(a.Slice(1, 0, 2), b.Slice(1, 0, 2)));
    EXPECT_FALSE(SameBits(a.Slice(1, 3, 1), b.Slice(1, 3, 1)));
  });
}

// A few elements of every parameter, in f64, dropout included.
class GptGradientTest : public testing::TestWithParam<bool> {};

TEST_P(GptGradientTest, AreCentralDifferences) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    GptConfig config = kTiny;
    config.tied_head = GetParam();
    Gpt model(config);
    Materialize(model, context, {.dtype = DType::kF64});
    Widen(model);
    Backward(MeanLoss(model, Layout(2, 0)));
    std::mt19937_64 random(1);
    const NoGradGuard no_grad(context->state());
    for (Parameter* parameter : model.AllParameters()) {
      double* elements = parameter->at_rest().ToLocal().data<double>();
      const std::vector<double> gradient = parameter->grad().ToLocal().ToVector<double>();
      for (int sample = 0; sample < 4; ++sample) {
        const size_t i = random() % gradient.size();
        const double at = elements[i];
        constexpr double kStep = 1e-5;
        elements[i] = at + kStep;
        const double above = MeanLoss(model, Layout(2, 0)).Item();
        elements[i] = at - kStep;
        const double below = MeanLoss(model, Layout(2, 0)).Item();
        elements[i] = at;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8)
            << parameter->path() << " element " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Heads, GptGradientTest, testing::Bool());

// Any layouts at rest and in compute, as no sensible plan would choose them: the same loss and gradients.
TEST(GptTest, EqualsOneDeviceUnderAnyLayouts) {
  for (bool tied : {false, true}) {
    GptConfig config = kTiny;
    config.tied_head = tied;
    double loss_expected = 0;
    std::vector<Tensor> expected;
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      Gpt model(config);
      Materialize(model, context, {.dtype = DType::kF64});
      Widen(model);
      const DTensor loss = MeanLoss(model, Layout(2, 0));
      loss_expected = loss.Item();
      Backward(loss);
      for (const Parameter* parameter : model.AllParameters())
        expected.push_back(parameter->grad().FullTensor());
    });
    for (const char* mesh : {"a=2", "a=2,b=2"}) {
      OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
        std::mt19937_64 random(17);
        for (int draw = 0; draw < 6; ++draw) {
          Gpt model(config);
          for (Module* module : model.AllModules()) module->Bind(context);
          for (Parameter* parameter : model.AllParameters()) {
            const int ndim = parameter->spec().shape.ndim();
            const ParameterLayouts layouts = {
                .at_rest = RandomLayout(context->mesh(), ndim, random, /*partial=*/false),
                .compute = RandomLayout(context->mesh(), ndim, random, /*partial=*/false)};
            parameter->Materialize(context, DType::kF64, DType::kF64, layouts);
          }
          Widen(model);
          const DTensor loss = MeanLoss(model, RandomLayout(context->mesh(), 2, random, /*partial=*/false));
          ASSERT_NEAR(loss.Item(), loss_expected, 1e-12);
          Backward(loss);
          const std::vector<Parameter*> parameters = model.AllParameters();
          for (size_t i = 0; i < parameters.size(); ++i) {
            ASSERT_EQ(parameters[i]->grad().layout(), parameters[i]->layouts().at_rest)
                << parameters[i]->path();
            ASSERT_TRUE(AllClose(parameters[i]->grad().FullTensor(), expected[i], 1e-11))
                << parameters[i]->path();
          }
        }
      });
    }
  }
}

TEST(GptTest, Misuse) {
  const auto error = [](const std::function<void(GptConfig&)>& change) {
    GptConfig config = kTiny;
    change(config);
    return ErrorOf([&] { Gpt model(config); });
  };
  EXPECT_EQ(error([](GptConfig& c) { c.layers = 0; }), "gpt: layers must be at least 1, got 0");
  EXPECT_EQ(error([](GptConfig& c) { c.vocabulary = -1; }), "gpt: vocabulary must be at least 1, got -1");
  EXPECT_EQ(error([](GptConfig& c) { c.heads = 3; }), "attention: 3 heads do not divide the model dim 8");
  EXPECT_EQ(error([](GptConfig& c) { c.dropout = 1; }), "gpt: dropout must be in [0, 1), got 1");
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Gpt model(kTiny);
    const DTensor tokens = Tokens(context, {1, 7}, 11, 0, Layout(2, 0));
    EXPECT_EQ(ErrorOf([&] { model(tokens); }),
              "module '' has no values yet: call Materialize or Parallelize on the model first");
    Materialize(model, context);
    EXPECT_EQ(ErrorOf([&] { model(tokens); }),
              "gpt: expected tokens [b, s] with s at most 6, got i64[1, 7] [-, -]");
  });
}

}  // namespace
}  // namespace weft
