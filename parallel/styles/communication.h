// By which method gradients are summed over the ranks that share the batch.

#ifndef WEFT_PARALLEL_STYLES_COMMUNICATION_H_
#define WEFT_PARALLEL_STYLES_COMMUNICATION_H_

#include "absl/strings/string_view.h"
#include "parallel/compression/communication_method.h"
#include "parallel/style.h"

namespace weft {

// Gradients of all parameters below the modules are summed over their data-parallel axes by `method`:
//
//   "none"                 the exact sum, by an all-reduce
//   "bf16", "f16"          every element in 16 bits
//   "int8"                 in 8, by blocks of 256, rounded at random
//   "onebit"               the sign, and a block's mean magnitude
//   "topk(0.01)"           the largest hundredth; topk(0.01, momentum=0.9) with momentum correction and masking
//   "randomk(0.01)"        a hundredth, drawn by magnitude
//   "powersgd(2)"          the product of two matrices of rank 2
//
// What a method does not send is added to the next gradient (error feedback), unless error_feedback=false is among its
// arguments. A program's own methods are registered beside these (parallel/compression/compressor.h).
//
//   {"", DataParallel("dp")}, {"", Communication("topk(0.01)")}, {"ln_f", Communication("none")}
//
// The later entry wins. Where gradients rest split along an axis (FullyShard, shard_state, shard_gradient) each rank gets
// its piece of the sum, and replicas of pieces are summed by the method again. A parameter that several ranks of a pipeline
// have is refused where the plan is resolved. docs/compression.md says which to take.
Style Communication(absl::string_view method);

// The method of such a style.
// Errors: as CommunicationMethod::Parse.
CommunicationMethod MethodOf(const Style& communication);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_COMMUNICATION_H_
