// A node that runs a test's own code in backward.

#ifndef WEFT_TESTS_DTENSOR_AUTOGRAD_WITHIN_BACKWARD_H_
#define WEFT_TESTS_DTENSOR_AUTOGRAD_WITHIN_BACKWARD_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/dtensor.h"

namespace weft {

// x, on a mesh without axes, recorded as a node of its own; its backward calls `run`, and hands the gradient on.
inline DTensor WithinBackward(const DTensor& x, std::function<void()> run) {
  const Layout whole(x.ndim(), 0);
  const LocalFunction identity = {
      .name = "identity",
      .operands = {{whole, whole}},
      .outputs = {{x.type(), whole, whole}},
      .forward = [](absl::Span<const Tensor> operands) { return std::vector<Tensor>{operands[0]}; },
      .backward =
          [run = std::move(run)](const LocalGradients& of) {
            run();
            return std::vector<Tensor>{of.gradients[0]};
          }};
  return CallLocal(identity, {x})[0];
}

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_AUTOGRAD_WITHIN_BACKWARD_H_
