#include "ops/convolution/resample.h"

#include <algorithm>
#include <vector>

#include "ops/convolution/resample_weights.h"
#include "ops/cpu/spans/element_blocks.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/absent.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

using Call = KernelCall<ResampleAttributes, NoScalars>;

// One weight of a row of the matrix, or of a column for the transpose.
struct Term {
  int64_t local = 0;  // in this rank's piece of the operand
  double weight = 0;
};

// What this rank has of the sum that element `i` of the result is: none where it holds no part of the band.
template <bool kTranspose>
std::vector<Term> TermsOf(const ResampleWeights& weights, int64_t i, const ShardBox& x, int dim) {
  const ResampleWeights::Band band = kTranspose ? weights.Column(i) : weights.Row(i);
  const int64_t first = std::max(band.first, x.offset[dim]);
  const int64_t last = std::min(band.last, x.offset[dim] + x.shape[dim] - 1);
  std::vector<Term> terms;
  for (int64_t j = first; j <= last; ++j) {
    const double weight = kTranspose ? weights.Weight(j, i) : weights.Weight(i, j);
    if (weight != 0) terms.push_back({j - x.offset[dim], weight});
  }
  return terms;
}

// y[o, i, k] = sum over j of w[i, j] x[o, j, k], in double. The terms of each i are worked out once and serve
// all rows; the rows go to the threads.
template <bool kTranspose>
void ResampleWith(const Call& call, const ResampleWeights& weights) {
  const int dim = call.attributes().dim;
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const Tensor x = Dense(call.inputs[0], call.context);
  int64_t inner = 1;
  for (int d = dim + 1; d < y.ndim(); ++d) inner *= y.shape()[d];
  const int64_t length = y.shape()[dim];
  const int64_t x_length = x.shape()[dim];
  // No row is without weights, but columns are: those that a coarser result passes over.
  const double nothing = kTranspose && call.input_boxes[0].offset[dim] == 0 ? 0.0 : kAbsent;
  std::vector<std::vector<Term>> terms(length);
  for (int64_t i = 0; i < length; ++i) {
    terms[i] = TermsOf<kTranspose>(weights, call.output_boxes[0].offset[dim] + i, call.input_boxes[0], dim);
  }
  VisitFloating(y.dtype(), "resample", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const T* const from = x.data<T>();
    T* const to = y.data<T>();
    ParallelForRows(call.context, y.num_elements() / inner, inner, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(inner);
      for (int64_t row = begin; row < end; ++row) {
        const std::vector<Term>& of_row = terms[row % length];
        const T* const block = from + row / length * x_length * inner;
        std::fill(sums.begin(), sums.end(), of_row.empty() ? nothing : kAbsent);
        for (const Term& term : of_row) {
          const T* const source = block + term.local * inner;
          for (int64_t k = 0; k < inner; ++k) sums[k] += term.weight * static_cast<C>(source[k]);
        }
        for (int64_t k = 0; k < inner; ++k) to[row * inner + k] = ConvertElement<T>(static_cast<C>(sums[k]));
      }
    });
  });
}

void Resample(const Call& call) {
  const ResampleAttributes& a = call.attributes();
  ResampleWith</*kTranspose=*/false>(
      call, MakeResampleWeights(a, call.input_boxes[0].global_shape[a.dim], a.extent));
}

void ResampleGrad(const Call& call) {
  const ResampleAttributes& a = call.attributes();
  ResampleWith</*kTranspose=*/true>(
      call, MakeResampleWeights(a, a.extent, call.input_boxes[0].global_shape[a.dim]));
}

const RegisterKernel kRegister(kResample, DeviceType::kCpu, Resample);
const RegisterKernel kRegisterGrad(kResampleGrad, DeviceType::kCpu, ResampleGrad);

}  // namespace
}  // namespace weft
