// Activations that are computed again in backward, and not kept until then.

#ifndef WEFT_PARALLEL_STYLES_RECOMPUTE_H_
#define WEFT_PARALLEL_STYLES_RECOMPUTE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/style.h"

namespace weft {

struct RecomputeStyleOptions {
  // Ops whose results stay, by name; "contract" and "attention" are all products and all forms of attention
  // (dtensor/tape/kept_results.h). What lies between them is computed again.
  std::vector<std::string> keep = {};
  // So many neighbours are one: backward keeps what the first of them got. For modules that are segments of the model
  // (dtensor/nn/segmented_module.h), each one's own.
  int64_t every = 1;
  // False: the last microbatch of a step keeps all, since its backward comes at once.
  bool last_microbatch = true;
};

// Backward computes each of the modules again, from what it got. Of a model's layers it keeps their inputs alone: b s d
// elements per layer, and the activations of one layer at a time. Under FullyShard the layer's parameters are gathered in
// backward once, for both. A module is recomputed as a unit if it computes in Forward or ForwardTensors.
//
//   {"blocks.*", Recompute()}
//   {"blocks.*", Recompute({.keep = {"contract", "attention"}})}     norms, dropout and sums again, no product
//
// Later entries on a module override field by field.
// Source: Chen et al., "Training deep nets with sublinear memory cost", 2016; Korthikanti et al., "Reducing activation
//         recomputation in large transformer models", 2022.
Style Recompute(const RecomputeStyleOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_RECOMPUTE_H_
