#include "ops/reduce/variance.h"

#include <cmath>
#include <functional>

#include "ops/cpu/reduce/fold_in_double.h"
#include "ops/cpu/reduce/reduced_gradient.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/declare/reduced_dims.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<VarianceAttributes, NoScalars>;

// By the global count, so that the pieces of a split tensor divide alike. A correction above the count leaves
// 0, whose quotient is inf or nan, and no negative variance.
double Divisor(const ShardBox& box, const VarianceAttributes& a) {
  return std::max(0.0, static_cast<double>(ReducedCount(box.global_shape, a.dims)) - a.correction);
}

void AddTo(double& sum, double next) { sum += next; }

template <class T>
std::vector<double> Sums(KernelContext& context, const DimRows& rows) {
  using C = ArithmeticType<T>;
  const auto part = [](const C* x, int64_t n, int64_t, int64_t) { return Rows<C>().sum(x, n); };
  return ReduceDimRows<T, double>(context, rows, part, AddTo);
}

// Of differences from means[row].
// Around the mean as it was rounded to the compute type, which backward is given too. In double: squares of
// floats leave float's range long before their root does.
template <class T>
std::vector<double> CenteredSums(KernelContext& context, const DimRows& rows,
                                 const ArithmeticType<T>* means) {
  using C = ArithmeticType<T>;
  const auto part = [&](const C* x, int64_t n, int64_t row, int64_t) {
    const double mean = means[row];
    return FoldInDouble(x, n, 0, std::plus<double>(), [mean](double v) { return (v - mean) * (v - mean); });
  };
  return ReduceDimRows<T, double>(context, rows, part, AddTo);
}

// Two passes: E[x^2] - mean^2 would cancel, and Welford's update is a division per element.
template <bool kRoot>
void Variance(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "variance", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], call.attributes().dims, call.context);
    const std::vector<double> sums = Sums<T>(call.context, rows);
    C* const means = call.outputs[1].template data<C>();
    for (size_t row = 0; row < sums.size(); ++row) {
      means[row] = static_cast<C>(sums[row] / static_cast<double>(rows.num_columns));
    }
    const std::vector<double> squares = CenteredSums<T>(call.context, rows, means);
    const double divisor = Divisor(call.input_boxes[0], call.attributes());
    T* const y = call.outputs[0].template data<T>();
    for (size_t row = 0; row < squares.size(); ++row) {
      const double variance = squares[row] / divisor;
      y[row] = ConvertElement<T>(kRoot ? std::sqrt(variance) : variance);
    }
  });
}

void MeanStatistic(const KernelCall<ReduceAttributes, NoScalars>& call) {
  const DimMask dims = call.attributes().dims;
  const auto count = static_cast<double>(ReducedCount(call.input_boxes[0].global_shape, dims));
  VisitFloating(call.inputs[0].dtype(), "mean_statistic", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const std::vector<double> sums = Sums<T>(call.context, RowsAlong(call.inputs[0], dims, call.context));
    C* const y = call.outputs[0].template data<C>();
    for (size_t row = 0; row < sums.size(); ++row) y[row] = static_cast<C>(sums[row] / count);
  });
}

void CenteredSquares(const KernelCall<ReduceAttributes, NoScalars>& call) {
  const Tensor means = Dense(call.inputs[1], call.context);
  VisitFloating(call.inputs[0].dtype(), "centered_squares", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], call.attributes().dims, call.context);
    const std::vector<double> squares = CenteredSums<T>(call.context, rows, means.data<C>());
    std::copy(squares.begin(), squares.end(), call.outputs[0].template data<double>());
  });
}

// numerator / divisor, nan where nothing is left to divide by: an infinite factor would not be linear in dy.
double GradientScale(double numerator, const ShardBox& box, const VarianceAttributes& a) {
  const double divisor = Divisor(box, a);
  return divisor > 0 ? numerator / divisor : std::nan("");
}

void VarianceGrad(const Call& call) {
  const double scale = GradientScale(2, call.input_boxes[0], call.attributes());
  MapReducedGradient(call, [scale]<class C>(C* const* spans, int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const C centered = spans[0][i] - spans[1][i];
      spans[3][i] = spans[2][i] * centered * static_cast<C>(scale);
    }
  });
}

// At a standard deviation of 0 the slope is 0 / 0; 0 is taken.
void StdGrad(const Call& call) {
  const double scale = GradientScale(1, call.input_boxes[0], call.attributes());
  MapReducedGradient(call, [scale]<class C>(C* const* spans, int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const C centered = spans[0][i] - spans[1][i];
      const C slope = centered / spans[2][i] * static_cast<C>(scale);
      spans[4][i] = spans[2][i] == 0 ? C(0) : spans[3][i] * slope;
    }
  });
}

const RegisterKernel kRegister[] = {
    {kVariance, DeviceType::kCpu, Variance<false>},
    {kStd, DeviceType::kCpu, Variance<true>},
    {kMeanStatistic, DeviceType::kCpu, MeanStatistic},
    {kCenteredSquares, DeviceType::kCpu, CenteredSquares},
};
const RegisterKernel kRegisterGrads[] = {
    {kVarianceGrad, DeviceType::kCpu, VarianceGrad},
    {kStdGrad, DeviceType::kCpu, StdGrad},
};

}  // namespace
}  // namespace weft
