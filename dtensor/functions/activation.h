#ifndef WEFT_DTENSOR_FUNCTIONS_ACTIVATION_H_
#define WEFT_DTENSOR_FUNCTIONS_ACTIVATION_H_

#include "dtensor/dtensor.h"

// Activation functions; Tanh and Sigmoid are in elementwise.h.
namespace weft {

// Of every element, as it lies; floating.
// Layout: every dim may be split; a Partial x is reduced first.
// Cost:   no communication but that.
// Errors: InvalidArgument for another dtype.
DTensor Relu(const DTensor& x);
DTensor Silu(const DTensor& x);
DTensor Gelu(const DTensor& x);       // the tanh approximation, as GPT-2
DTensor GeluExact(const DTensor& x);  // by erf

// Over one dim (negative from the end): the last runs split without being gathered, another is made the last
// by a view of x and back.
// Cost:   where the dim is split, an all-reduce of two numbers per row in forward (a maximum, then a sum) and of one in backward.
// Errors: InvalidArgument for a dim outside x, or a dtype that is not floating.
DTensor Softmax(const DTensor& x, int dim = -1);
DTensor LogSoftmax(const DTensor& x, int dim = -1);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_ACTIVATION_H_
