#ifndef WEFT_DTENSOR_FUNCTIONS_NEURAL_H_
#define WEFT_DTENSOR_FUNCTIONS_NEURAL_H_

#include "dtensor/dtensor.h"

// What networks are made of.
namespace weft {

// Over one dim (negative from the end): the last runs split without being gathered, another is made the last
// by a view of x and back.
DTensor Softmax(const DTensor& x, int dim = -1);
DTensor LogSoftmax(const DTensor& x, int dim = -1);
DTensor LayerNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps = 1e-5);
DTensor RmsNormalize(const DTensor& x, const DTensor& weight, double eps = 1e-5);
// tokens [...], table [v, d] -> [..., d]
DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table);
// q [b, s, h, e], k and v [b, s, g, e] with h a multiple of g -> [b, s, h, e]
DTensor CausalAttention(const DTensor& q, const DTensor& k, const DTensor& v);
// The same of q, k and v in one tensor, as one projection makes them: qkv [b, s, 3, h, e] -> [b, s, h, e].
DTensor PackedCausalAttention(const DTensor& qkv);
// Rotary position embedding of x [b, s, h, e].
DTensor Rotary(const DTensor& x, double base = 10000);

// The summed loss and the number of counted positions, both scalars: divide the one by the (global) other, so
// that batch shards and microbatches weigh by tokens. `count` carries no gradient.
struct LossSum {
  DTensor sum;
  DTensor count;
  // sum / count: a scalar, Partial where the sum is.
  // Cost:   an all-reduce of the count over the axes that split the batch.
  DTensor Mean() const;
};
struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};
// logits [..., v], targets [...] -> scalars. Logits split over v are not gathered.
LossSum CrossEntropy(const DTensor& logits, const DTensor& targets, const CrossEntropyOptions& options = {});
// Squared differences of two tensors of one shape; every element counts. Halves are compared and summed in
// f32.
// Errors: InvalidArgument if the shapes differ, where PyTorch would broadcast and warn.
LossSum MseLoss(const DTensor& prediction, const DTensor& target);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_NEURAL_H_
