// In which dtypes parts of a model compute.

#ifndef WEFT_PARALLEL_STYLES_PRECISION_H_
#define WEFT_PARALLEL_STYLES_PRECISION_H_

#include <optional>

#include "parallel/style.h"
#include "runtime/base/dtype.h"

namespace weft {

struct PrecisionOptions {
  std::optional<DType> param =
      std::nullopt;  // in which compute reads parameters; inputs of modules are cast to it
  std::optional<DType> reduce =
      std::nullopt;  // in which gradients are summed over ranks; as at rest, or as a cast of the model's
                     // brings them (ops/elementwise/cast.h), if not given
  std::optional<DType> output =
      std::nullopt;  // to which the outputs of the modules that the entry names are cast
  std::optional<DType> buffer =
      std::nullopt;  // of buffers whose modules do not say theirs: running statistics
};

// How everything below the modules computes. Parameters stay in their dtype at rest, as do gradients and the state of
// the optimizer: compute reads a copy, cast before it is gathered. A floating tensor that enters a module below is cast
// to the module's `param`, and stays so when it leaves, but for modules named here with an `output`. Where a plan has an
// entry with a `param`, modules that none reaches compute in ParallelizeOptions::compute_dtype.
//
//   {"", Precision({.param = DType::kBF16})}, {"**.ln_1", Precision({.param = DType::kF32})}
//
// Each of f16, bf16, f32, f64. Later entries on a module override field by field.
// Source: the semantics of torch.distributed.fsdp.MixedPrecisionPolicy (param_dtype, reduce_dtype, output_dtype,
//         cast_forward_inputs), and of MixedPrecision's buffer_dtype; Micikevicius et al., "Mixed precision training", 2018.
Style Precision(const PrecisionOptions& options);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_PRECISION_H_
