#ifndef WEFT_DTENSOR_FUNCTIONS_H_
#define WEFT_DTENSOR_FUNCTIONS_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"

// The functions that models are written with. Each is one op (ops/<family>.h says what it computes and how it
// may be split); any layout is taken, and operands are redistributed where the op's sharding rule needs it.
// Letters in shapes: b batch, s sequence, d model, h heads, e head dim, v vocabulary; `...` is any number of
// leading dims.
namespace weft {

// Creation: only this rank's piece is made. The layout is replicated unless given.
DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value);
DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value,
             const Layout& layout);
// Standard normal elements of the named stream of the context's seed: the same on every layout.
DTensor RandomNormal(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                     const Layout& layout, absl::string_view stream);

// Arithmetic, with NumPy broadcasting.
DTensor Add(const DTensor& a, const DTensor& b);
DTensor Sub(const DTensor& a, const DTensor& b);
DTensor Mul(const DTensor& a, const DTensor& b);
DTensor Div(const DTensor& a, const DTensor& b);
DTensor Scale(const DTensor& x, double factor);
inline DTensor operator+(const DTensor& a, const DTensor& b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, const DTensor& b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, const DTensor& b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, const DTensor& b) { return Div(a, b); }
inline DTensor operator*(const DTensor& x, double factor) { return Scale(x, factor); }
inline DTensor operator*(double factor, const DTensor& x) { return Scale(x, factor); }

// Elementwise.
DTensor Exp(const DTensor& x);
DTensor Log(const DTensor& x);
DTensor Sqrt(const DTensor& x);
DTensor Square(const DTensor& x);
DTensor Tanh(const DTensor& x);
DTensor Relu(const DTensor& x);
DTensor Silu(const DTensor& x);
DTensor Gelu(const DTensor& x);  // the tanh approximation, as GPT-2
DTensor Cast(const DTensor& x, DType dtype);
// Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate), while the rank state is
// training; the bits depend on the seed, the step, the module path and how many times the module has asked in
// this forward.
DTensor Dropout(const DTensor& x, double rate);

// Reductions over `dims` (negative from the end; none listed: all).
DTensor Sum(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor Mean(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);

// Products. MatMul: [..., m, k] x [k, n] -> [..., m, n], or [..., m, k] x [..., k, n] with equal leading
// dims.
DTensor MatMul(const DTensor& x, const DTensor& w);
// Named dims: Contract(x, "bsd", w, "dthe", "bsthe"). Letters in both operands and not in the result are
// summed.
DTensor Contract(const DTensor& x, absl::string_view x_dims, const DTensor& w, absl::string_view w_dims,
                 absl::string_view y_dims);

// Shape.
DTensor Reshape(const DTensor& x, const Shape& shape);
DTensor Permute(const DTensor& x, const std::vector<int>& order);
DTensor Transpose(const DTensor& x, int dim_a, int dim_b);
DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length);
DTensor Concat(const std::vector<DTensor>& parts, int dim);
DTensor Stack(const std::vector<DTensor>& parts, int dim);
std::vector<DTensor> Unbind(const DTensor& x, int dim);

// Neural.
DTensor Softmax(const DTensor& x);  // over the last dim
DTensor LayerNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double epsilon = 1e-5);
DTensor RmsNormalize(const DTensor& x, const DTensor& weight, double epsilon = 1e-5);
// tokens [...], table [v, d] -> [..., d]
DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table);
// q [b, s, h, e], k and v [b, s, g, e] with h a multiple of g -> [b, s, h, e]
DTensor CausalAttention(const DTensor& q, const DTensor& k, const DTensor& v);
// Rotary position embedding of x [b, s, h, e].
DTensor Rotary(const DTensor& x, double base = 10000);

// The summed loss and the number of counted positions, both scalars: divide the one by the (global) other, so
// that batch shards and microbatches weigh by tokens. `count` carries no gradient.
struct LossSum {
  DTensor sum;
  DTensor count;
  // sum / count: a scalar, Partial where the sum is.   Cost: an all-reduce of the count over the axes that
  // split the batch.
  DTensor Mean() const;
};
struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};
// logits [..., v], targets [...] -> scalars. Logits split over v are not gathered.
LossSum CrossEntropy(const DTensor& logits, const DTensor& targets, const CrossEntropyOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_H_
