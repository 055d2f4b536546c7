#ifndef WEFT_DTENSOR_FUNCTIONS_ACTIVATION_H_
#define WEFT_DTENSOR_FUNCTIONS_ACTIVATION_H_

#include "dtensor/dtensor.h"

// Activation functions; Tanh and Sigmoid are in elementwise.h.
namespace weft {

// Of every element.
DTensor Relu(const DTensor& x);
DTensor Silu(const DTensor& x);
DTensor Gelu(const DTensor& x);       // the tanh approximation, as GPT-2
DTensor GeluExact(const DTensor& x);  // by erf

// Over one dim (negative from the end): the last runs split without being gathered, another is made the last
// by a view of x and back.
DTensor Softmax(const DTensor& x, int dim = -1);
DTensor LogSoftmax(const DTensor& x, int dim = -1);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_ACTIVATION_H_
