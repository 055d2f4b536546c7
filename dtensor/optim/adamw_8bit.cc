#include "dtensor/optim/adamw_8bit.h"

#include "dtensor/dispatch.h"
#include "ops/optimizer/block_quantize.h"

namespace weft {
namespace {

AdamWOptions WholeOptions(const AdamW8BitOptions& options) {
  RequireNoMatrices(options.groups, "AdamW8Bit");
  WEFT_REQUIRE(options.min_elements >= 0, "AdamW8Bit: expected min_elements of 0 or more, got ",
               options.min_elements);
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .groups = options.groups};
}

// Scalars have no blocks.
bool HasBlocks(const Parameter& parameter, int64_t min_elements) {
  const Shape& shape = parameter.spec().shape;
  return shape.ndim() > 0 && shape.num_elements() >= min_elements;
}

// Of scales, where codes lie as `codes`: dim 0 of rows alone may be split.
Layout ScalesLayout(const Layout& codes) {
  if (codes.ndim() < 2) return Layout(/*ndim=*/1, codes.num_axes());
  Layout scales(/*ndim=*/2, codes.num_axes());
  for (const int axis : codes.ShardAxes(0)) scales = scales.WithShard(axis, 0);
  return scales;
}

}  // namespace

AdamW8Bit::AdamW8Bit(std::vector<Parameter*> parameters, const AdamW8BitOptions& options)
    : AdamW(std::move(parameters), WholeOptions(options), "AdamW8Bit",
            [&](const Parameter& parameter, const ParameterGroup&) {
              return !HasBlocks(parameter, options.min_elements);
            }),
      m_(MakeQuantized(/*is_signed=*/true)),
      v_(MakeQuantized(/*is_signed=*/false)) {}

AdamW8Bit::Quantized AdamW8Bit::MakeQuantized(bool is_signed) const {
  Quantized moment = {.codes = {}, .scales = {}, .is_signed = is_signed};
  moment.codes.resize(parameters().size());
  moment.scales.resize(parameters().size());
  for (int i = 0; i < static_cast<int>(parameters().size()); ++i) {
    if (keeps_moments(i)) continue;
    const Shape& shape = parameters()[i]->spec().shape;
    const Layout& layout = parameters()[i]->layouts().of_state();
    // Whatever the codes: scales are 0.
    moment.codes[i] = MakeState(i, {DType::kU8, shape}, layout);
    moment.scales[i] = MakeState(i, {DType::kF32, BlockScalesShape(shape)}, ScalesLayout(layout));
  }
  return moment;
}

DTensor AdamW8Bit::Read(const Quantized& moment, int index) const {
  return Call(kDequantizeBlocks, {moment.codes[index], moment.scales[index]},
              {.is_signed = moment.is_signed, .dtype = value(index).dtype()});
}

void AdamW8Bit::Write(const Quantized& moment, int index, const DTensor& x, const DTensor& scale) const {
  const DTensor& scales = moment.scales[index];
  const PurposeGuard purpose(x.context()->state(), Purpose::kNorm);
  const DTensor magnitudes = Call(kBlockMagnitudes, {x}).Redistribute(scales.layout());
  Call(kQuantizeBlocks, {moment.codes[index], scales, x, magnitudes, scale}, {.is_signed = moment.is_signed});
}

void AdamW8Bit::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  std::vector<int> whole;
  std::vector<int> quantized;
  for (const int i : indices) (keeps_moments(i) ? whole : quantized).push_back(i);
  if (!whole.empty()) AdamW::Update(whole, lr, scale);
  // One parameter at a time, so that two moments of one are whole at most.
  for (const int i : quantized) {
    const DTensor m = Read(m_, i);
    const DTensor v = Read(v_, i);
    UpdateEach({{.index = i, .m = m, .v = v}}, lr, scale);
    Write(m_, i, m, scale);
    Write(v_, i, v, scale);
  }
}

std::vector<std::pair<std::string, DTensor>> AdamW8Bit::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state = AdamW::Moments();
  AppendMoment("m", m_.codes, &state);
  AppendMoment("m_scale", m_.scales, &state);
  AppendMoment("v", v_.codes, &state);
  AppendMoment("v_scale", v_.scales, &state);
  return state;
}

}  // namespace weft
