#include "dtensor/nn/gpt.h"

#include <cmath>

namespace weft {
namespace {

const GptConfig& Checked(const GptConfig& config) {
  const auto check = [](absl::string_view what, int64_t value) {
    WEFT_REQUIRE(value >= 1, "gpt: ", what, " must be at least 1, got ", value);
  };
  check("vocabulary", config.vocabulary);
  check("context", config.context);
  check("layers", config.layers);
  check("heads", config.heads);
  check("dim", config.dim);
  WEFT_REQUIRE(config.dropout >= 0 && config.dropout < 1, "gpt: dropout must be in [0, 1), got ",
               config.dropout);
  return config;
}

// Each layer adds twice to the residual stream; this keeps its variance at the start.
Initializer ResidualWeight(const GptConfig& config) {
  return Initializer::Normal(0, 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

}  // namespace

GptBlock::GptBlock(Module* parent, std::string name, const GptConfig& config)
    : Module(parent, std::move(name)),
      ln_1(this, "ln_1", config.dim),
      attn(this, "attn", config.dim, config.heads, ResidualWeight(config)),
      ln_2(this, "ln_2", config.dim),
      mlp(this, "mlp", config.dim, 4 * config.dim, ResidualWeight(config)),
      dropout_(config.dropout) {}

DTensor GptBlock::Forward(const DTensor& x) {
  const DTensor attended = x + Dropout(attn(ln_1(x)), dropout_);
  return attended + Dropout(mlp(ln_2(attended)), dropout_);
}

Gpt::Gpt(const GptConfig& config)
    : wte(this, "wte", Checked(config).vocabulary, config.dim),
      wpe(this, "wpe", {.shape = {config.context, config.dim}, .initializer = Initializer::Normal(0, 0.02)}),
      ln_f(this, "ln_f", config.dim),
      config_(config) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks.push_back(std::make_unique<GptBlock>(this, absl::StrCat("blocks.", layer), config));
  }
  if (config.tied_head) {
    head = std::make_unique<TiedHead>(this, "head", wte);
  } else {
    head =
        std::make_unique<Linear>(this, "head", config.dim, config.vocabulary, LinearOptions{.bias = false});
  }
}

DTensor Gpt::Embed(const DTensor& tokens) {
  WEFT_REQUIRE(tokens.ndim() == 2 && tokens.shape()[1] <= config_.context,
               "gpt: expected tokens [b, s] with s at most ", config_.context, ", got ", tokens.ToString());
  // [b, s, d] + [s, d]
  const DTensor x = wte(tokens) + Slice(wpe.Value(), /*dim=*/0, /*start=*/0, /*length=*/tokens.shape()[1]);
  return Dropout(x, config_.dropout);
}

std::vector<Segment> Gpt::MakeSegments() {
  // Of one token: a block has 12 d^2 weights, and attends with half of the context on average, twice.
  const auto d = static_cast<double>(config_.dim);
  const double block = 12 * d * d + static_cast<double>(config_.context) * d;
  std::vector<Segment> chain;
  chain.push_back({
      .modules = {&wte},
      .parameters = {&wpe},
      .cost = d,
      .run = [this](const DTensors& tokens) -> DTensors { return {Embed(tokens[0])}; },
  });
  for (const auto& each : blocks) {
    chain.push_back({
        .modules = {each.get()},
        .cost = block,
        .run = [&each](const DTensors& x) -> DTensors { return {(*each)(x[0])}; },
    });
  }
  chain.push_back({
      .modules = {&ln_f, head.get()},
      .cost = static_cast<double>(config_.vocabulary) * d,
      .run = [this](const DTensors& x) -> DTensors { return {(*head)(ln_f(x[0]))}; },
  });
  if (config_.tied_head) chain.back().modules.push_back(&wte);
  return chain;
}

LossSum Gpt::Loss(const DTensor& tokens, const DTensor& targets) {
  return LossOf({(*this)(tokens)}, targets);
}

LossSum Gpt::LossOf(const DTensors& outputs, const DTensor& targets) {
  return CrossEntropy(outputs[0], targets);
}

}  // namespace weft
