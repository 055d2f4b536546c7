// Initializers beyond constants, normals and uniforms: scaled by what a weight sums, truncated, orthogonal, or any function of
// where an element lies.

#ifndef WEFT_DTENSOR_NN_INITIALIZERS_H_
#define WEFT_DTENSOR_NN_INITIALIZERS_H_

#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "dtensor/nn/initializer.h"

namespace weft {

// All of them have the same bits on every layout, and on every machine but for the last bit of a scale that is a root.
//
// Those that are scaled go by the parameter's fans: what its module declares (ParameterSpec::fans), as Linear and the
// convolutions do; otherwise, of two dims [in, out], their extents.
// Errors: InvalidArgument that names the parameter, when it gets its value, if it has other dims and declares none; here,
//         for a gain or deviation below 0, or an option that is not finite.

// The mean variance of inputs and outputs is kept: deviation gain sqrt(2 / (in + out)), uniform within sqrt(3) of that.
// Source: Glorot & Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
Initializer XavierUniform(double gain = 1);
Initializer XavierNormal(double gain = 1);

struct KaimingOptions {
  double negative_slope = 0;  // of the leaky rectifier behind it; 0: Relu; 1: none
  bool fan_out = false;  // keeps the variance of gradients in backward, and not that of values in forward
};
// Deviation sqrt(2 / (1 + negative_slope^2) / fan), uniform within sqrt(3) of that.
// Source: He et al., "Delving deep into rectifiers", 2015.
Initializer KaimingUniform(const KaimingOptions& options = {});
Initializer KaimingNormal(const KaimingOptions& options = {});

// A normal distribution of which what lies outside [low, high] is left out.
// Errors: InvalidArgument, here, unless the mean is finite, low < high, and between them is some of the distribution.
struct TruncatedNormalOptions {
  double mean = 0;
  double stddev = 1;
  double low = -2;
  double high = 2;
};
Initializer TruncatedNormal(const TruncatedNormalOptions& options = {});

// Rows, or columns if there are fewer of these, that are orthonormal, times `gain`: Q of a normal matrix's QR with a positive
// diagonal of R. The matrix is the parameter with its first `row_dims` dims as rows and the others as columns.
// Cost:   every rank makes the whole matrix, in f64: rows x columns x the lesser of them, twice.
// Errors: InvalidArgument, naming the parameter, unless it has more than `row_dims` dims.
//         Here, for a gain that is not finite.
// Source: Saxe et al., arXiv 1312.6120.
struct OrthogonalOptions {
  double gain = 1;
  int row_dims = 1;
};
Initializer Orthogonal(const OrthogonalOptions& options = {});

// `function` of each element's global index, a number for each dim.
Initializer FromFunction(std::function<double(absl::Span<const int64_t> index)> function);

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_INITIALIZERS_H_
