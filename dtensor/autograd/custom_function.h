// Functions of a user's own whose gradient is the user's, too: forward and backward written in DTensor functions.

#ifndef WEFT_DTENSOR_AUTOGRAD_CUSTOM_FUNCTION_H_
#define WEFT_DTENSOR_AUTOGRAD_CUSTOM_FUNCTION_H_

#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"

namespace weft {

// What a function's backward is given.
struct CustomGradients {
  DTensors operands;        // as in forward; undefined where the function does not save them
  DTensors outputs;         // likewise
  DTensors gradients;       // of the outputs; undefined where none arrived
  std::vector<bool> wants;  // of each operand, whether a gradient is asked for
};

struct CustomFunction {
  std::string name;  // what errors call it
  // Runs with nothing recorded.
  std::function<DTensors(const DTensors& operands)> forward;
  // A gradient for each operand, of its type, on its mesh and in any layout; undefined for one that has none. Its calls are
  // recorded where gradients of gradients are asked for, on the history of what it is given.
  std::function<DTensors(const CustomGradients& of)> backward;
  bool saves_operands = true;
  bool saves_outputs = true;
};

// Runs `function`, one node on the tape:
//
//   const CustomFunction relu_squared = {
//       .name = "relu_squared",
//       .forward = [](const DTensors& x) -> DTensors { return {Square(Relu(x[0]))}; },
//       .backward = [](const CustomGradients& of) -> DTensors {
//         return {Mul(Scale(Relu(of.operands[0]), 2), of.gradients[0])};
//       }};
//   DTensor y = CallCustom(relu_squared, {x})[0];
//
// Memory: operands and outputs until backward, where it saves them; a parameter's copy as what it was made of.
// Cost:   that of its calls.
// Errors: InvalidArgument naming the function: no forward, no backward where a gradient is wanted, no operand, one that is
//         undefined, an undefined output, gradients of another number or type, or on another mesh. FailedPrecondition for a
//         backward after one that did not retain the graph, or for a saved value that has been changed since.
// Source: the semantics of torch.autograd.Function.
DTensors CallCustom(const CustomFunction& function, const DTensors& operands);

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_CUSTOM_FUNCTION_H_
