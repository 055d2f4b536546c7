#include "dtensor/nn/linear.h"

#include "dtensor/functions.h"

namespace weft {
namespace {

Shape Joined(const Shape& a, const Shape& b) {
  Shape joined = a;
  for (int64_t extent : b) joined.push_back(extent);
  return joined;
}

// `count` letters from the alphabet's position `first`.
std::string Letters(int first, int count) {
  std::string letters;
  for (int i = 0; i < count; ++i) letters.push_back(static_cast<char>('a' + first + i));
  return letters;
}

}  // namespace

Linear::Linear(Module* parent, std::string name, const Shape& in, const Shape& out,
               const LinearOptions& options)
    : Module(parent, std::move(name)),
      weight(this, "weight",
             {.shape = Joined(in, out),
              .initializer = options.weight,
              .shard_dims = {.column = in.ndim() + options.column_dim,
                             .row = options.row_dim,
                             .even_split = options.even_split},
              .fans = Fans{.in = in.num_elements(), .out = out.num_elements()}}),
      in_(in),
      out_(out),
      gelu_input_(options.gelu_input) {
  if (!options.bias) return;
  // RowParallel leaves the bias whole: it is added once, after the sum.
  bias.emplace(this, "bias",
               ParameterSpec{.shape = out,
                             .initializer = Initializer::Constant(0),
                             .shard_dims = {.column = options.column_dim, .even_split = options.even_split},
                             .decays = false});
}

DTensor Linear::Forward(const DTensor& x) {
  const int leading = x.ndim() - in_.ndim();
  bool fits = leading >= 0;
  for (int dim = 0; fits && dim < in_.ndim(); ++dim) fits = x.shape()[leading + dim] == in_[dim];
  WEFT_REQUIRE(fits, "linear '", path(), "': expected an input whose last dims are ", in_.ToString(),
               ", got ", x.ToString());
  // [..., in] x [in, out] -> [..., out]
  const std::string lead = Letters(0, leading);
  const std::string in = Letters(leading, in_.ndim());
  const std::string out = Letters(leading + in_.ndim(), out_.ndim());
  const DTensor b = bias ? bias->Value() : DTensor();
  if (gelu_input_) return GeluContract(x, lead + in, weight.Value(), in + out, lead + out, b);
  return Contract(x, lead + in, weight.Value(), in + out, lead + out, b);
}

}  // namespace weft
