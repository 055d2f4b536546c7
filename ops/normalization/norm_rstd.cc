#include "ops/normalization/norm_rstd.h"

#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const NormRstdAttributes&) {
  const DType dtype = operands[0].dtype;
  WEFT_REQUIRE(dtype == DType::kF32 || dtype == DType::kF64, "norm_rstd: variance must be f32 or f64, got ",
               operands[0].ToString());
  return {operands[0]};
}

std::string Rule(absl::Span<const TensorType> operands, const NormRstdAttributes&) {
  return ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, operands[0].ndim());
}

std::vector<Sample<NormRstdAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {3, 5}}, 0, 2}}, .attributes = {.eps = 0.1}},
          {.operands = {{{DType::kF32, {}}, 0, 2}}, .attributes = {.eps = 0.1}}};
}

}  // namespace

constinit const Op<NormRstdAttributes> kNormRstd = {{
    .name = "norm_rstd",
    .operands = "variance",
    .outputs = "rstd",
    .infer = Infer,
    .rule = Rule,
    .samples = Samples,
}};

}  // namespace weft
