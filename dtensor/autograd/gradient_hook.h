// Hooks on the gradient of any tensor.

#ifndef WEFT_DTENSOR_AUTOGRAD_GRADIENT_HOOK_H_
#define WEFT_DTENSOR_AUTOGRAD_GRADIENT_HOOK_H_

#include <functional>

#include "dtensor/context/hook_list.h"
#include "dtensor/dtensor.h"

namespace weft {

// Sees the gradient of a value, summed over what was made of it, and returns what goes on in its place; an undefined tensor
// for the gradient as it is.
using GradientHook = std::function<DTensor(const DTensor& gradient)>;

struct HookedTensor {
  DTensor value;
  HookHandle handle;  // takes the hook off
};

// The same value as `x`, whose gradient `hook` sees in backward, in whatever layout it has, Partial too: the global value
// counts. Use `value` in x's place; what is made of x itself passes the hook by. Tensors are immutable: so it is the
// new handle that has the hook, and not x. Every rank hangs the same hooks.
//   x = OnGradient(x, [](const DTensor& gradient) { return gradient * 0.5; }).value;
//
// Errors: InvalidArgument if x wants no gradient; in backward, if the hook returns another type, or on another mesh.
HookedTensor OnGradient(const DTensor& x, GradientHook hook);

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_GRADIENT_HOOK_H_
