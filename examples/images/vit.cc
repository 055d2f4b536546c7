#include "examples/images/vit.h"

#include "dtensor/functions.h"
#include "dtensor/nn/initializers.h"

namespace weft {
namespace {

constexpr int64_t kHidden = 2;  // hidden features of a block, per feature

Shape Heads(const VitConfig& config) {
  WEFT_REQUIRE(config.dim % config.heads == 0, "vit: ", config.heads, " heads do not divide the model dim ",
               config.dim);
  return {config.heads, config.dim / config.heads};
}

int64_t NumPatches(const VitConfig& config) {
  const bool divides =
      config.patch >= 1 && config.rows % config.patch == 0 && config.columns % config.patch == 0;
  WEFT_REQUIRE(divides, "vit: patches of ", config.patch, " do not divide images of ", config.rows, " x ",
               config.columns);
  return (config.rows / config.patch) * (config.columns / config.patch);
}

}  // namespace

VitBlock::VitBlock(Module* parent, std::string name, const VitConfig& config)
    : Module(parent, std::move(name)),
      ln_1(this, "ln_1", config.dim),
      qkv(this, "qkv", {config.dim}, {3, Heads(config)[0], Heads(config)[1]},
          {.weight = XavierUniform(), .column_dim = 1, .even_split = true}),
      proj(this, "proj", Heads(config), {config.dim}, {.weight = XavierUniform(), .even_split = true}),
      ln_2(this, "ln_2", config.dim),
      up(this, "up", config.dim, kHidden * config.dim, {.weight = XavierUniform()}),
      down(this, "down", kHidden * config.dim, config.dim, {.weight = XavierUniform(), .gelu_input = true}),
      dropout_(config.dropout) {}

DTensor VitBlock::Forward(const DTensor& x) {
  // [b, s, d] -> [b, s, 3, h, e] -> three of [b, s, h, e]
  const std::vector<DTensor> parts = Unbind(qkv(ln_1(x)), /*dim=*/2);
  const DTensor seen = ScaledDotProductAttention(parts[0], parts[1], parts[2]);
  const DTensor attended = x + Dropout(proj(seen), dropout_);
  return attended + Dropout(down(up(ln_2(attended))), dropout_);
}

Vit::Vit(const VitConfig& config)
    : patches(this, "patches", /*in=*/1, config.dim, /*kernel=*/config.patch,
              {.stride = {config.patch, config.patch}}),
      positions(this, "positions",
                {.shape = {NumPatches(config), config.dim},
                 .initializer = TruncatedNormal({.stddev = 0.02, .low = -0.04, .high = 0.04}),
                 .decays = false}),
      ln(this, "ln", config.dim),
      head(this, "head", config.dim, config.classes, {.weight = XavierUniform()}),
      config_(config) {
  for (int64_t layer = 0; layer < config.layers; ++layer) blocks.Append<VitBlock>(config);
}

DTensor Vit::Tokens(const DTensor& images) {
  // [b, d, p, q] -> [b, d, s] -> [b, s, d]
  return Transpose(Flatten(patches(images), 2, 3), 1, 2) + positions.Value();
}

std::vector<Segment> Vit::MakeSegments() {
  // Products of numbers for one image: a block has (4 + 2 kHidden) d^2 weights, and every token attends to all, twice.
  const auto d = static_cast<double>(config_.dim);
  const auto s = static_cast<double>(NumPatches(config_));
  std::vector<Segment> chain;
  chain.push_back({
      .modules = {&patches},
      .parameters = {&positions},
      .cost = static_cast<double>(config_.rows * config_.columns) * d,
      .run = [this](const DTensors& images) -> DTensors { return {Tokens(images[0])}; },
  });
  for (Module* const block : blocks.children()) {
    chain.push_back({
        .modules = {block},
        .cost = s * ((4 + 2 * kHidden) * d * d + 2 * s * d),
        .run = [block](const DTensors& x) -> DTensors { return {(*block)(x[0])}; },
    });
  }
  chain.push_back({
      .modules = {&ln, &head},
      .cost = static_cast<double>(config_.classes) * d,
      .run = [this](const DTensors& x) -> DTensors { return {head(ln(Mean(x[0], {1})))}; },
  });
  return chain;
}

LossSum Vit::LossOf(const DTensors& logits, const DTensor& labels) { return CrossEntropy(logits[0], labels); }

std::vector<PlanEntry> VitTensorPlan(const std::string& axis) {
  return {
      {"blocks.*.qkv", ColumnParallel(axis)},
      {"blocks.*.proj", RowParallel(axis)},
      {"blocks.*.up", ColumnParallel(axis)},
      {"blocks.*.down", RowParallel(axis)},
  };
}

}  // namespace weft
