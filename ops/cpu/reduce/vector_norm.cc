#include "ops/reduce/vector_norm.h"

#include <cmath>
#include <limits>

#include "ops/cpu/reduce/fold_in_double.h"
#include "ops/cpu/reduce/reduced_gradient.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NormAttributes, NoScalars>;

constexpr double kInf = std::numeric_limits<double>::infinity();

// A nan wins.
double Larger(double a, double b) { return b > a || b != b ? b : a; }
double Smaller(double a, double b) { return b < a || b != b ? b : a; }

// The common p have loops of their own: pow costs tens of multiplications.
template <class C>
double PowerSumOf(const C* x, int64_t n, double p) {
  const auto add = [](double a, double b) { return a + b; };
  const auto same = [](double v) { return v; };
  // Of the absolute values.
  const auto fold = [&](double identity, const auto& combine, const auto& lift) {
    return FoldInDouble(x, n, identity, combine, [&](double v) { return lift(std::abs(v)); });
  };
  if (p == kInf) return fold(0, Larger, same);
  if (p == -kInf) return fold(kInf, Smaller, same);
  if (p == 0) return fold(0, add, [](double v) { return v != 0 ? 1.0 : 0.0; });
  if (p == 1) return fold(0, add, same);
  if (p == 2) return fold(0, add, [](double v) { return v * v; });
  return fold(0, add, [p](double v) { return std::pow(v, p); });
}

// Powers are not scaled by the largest |x| first, as BLAS does, which would take a pass more: in double the
// squares of all floats are in range.
double Finish(double sum, double p) {
  if (std::isinf(p) || p == 0 || p == 1) return sum;
  return p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
}

// Sums of powers before the root: pieces meet as parts of a row do, and NormFinish takes the root
// of the whole.
template <class T>
std::vector<double> PowerSums(const Call& call) {
  using C = ArithmeticType<T>;
  const double p = call.attributes().p;
  const DimRows rows = RowsAlong(call.inputs[0], call.attributes().dims, call.context);
  const auto part = [p](const C* x, int64_t n, int64_t, int64_t) { return PowerSumOf(x, n, p); };
  const auto merge = [p](double& a, double b) {
    a = p == kInf ? Larger(a, b) : p == -kInf ? Smaller(a, b) : a + b;
  };
  return ReduceDimRows<T, double>(call.context, rows, part, merge);
}

void VectorNorm(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "vector_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<double> sums = PowerSums<T>(call);
    T* const y = call.outputs[0].template data<T>();
    for (size_t row = 0; row < sums.size(); ++row) {
      y[row] = ConvertElement<T>(Finish(sums[row], call.attributes().p));
    }
  });
}

void PowerSum(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "power_sum", [&](auto tag) {
    const std::vector<double> sums = PowerSums<typename decltype(tag)::type>(call);
    std::copy(sums.begin(), sums.end(), call.outputs[0].template data<double>());
  });
}

void NormFinish(const KernelCall<NormFinishAttributes, NoScalars>& call) {
  const Tensor sums = Dense(call.inputs[0], call.context);
  VisitFloating(call.attributes().dtype, "norm_finish", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const y = call.outputs[0].template data<T>();
    const double* const sum = sums.data<double>();
    for (int64_t i = 0; i < sums.num_elements(); ++i) {
      y[i] = ConvertElement<T>(Finish(sum[i], call.attributes().p));
    }
  });
}

// The gradient of a maximum is shared among the elements that reach it, so their number in the
// whole row is needed.
void NormTies(const Call& call) {
  const Tensor extrema = Dense(call.inputs[1], call.context);
  VisitFloating(call.inputs[0].dtype(), "norm_ties", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], call.attributes().dims, call.context);
    const T* const y = extrema.data<T>();
    const auto part = [&](const C* x, int64_t n, int64_t row, int64_t) {
      const C extremum = ConvertElement<C>(y[row]);
      double ties = 0;
      for (int64_t i = 0; i < n; ++i) ties += std::abs(x[i]) == extremum ? 1 : 0;
      return ties;
    };
    const std::vector<double> ties =
        ReduceDimRows<T, double>(call.context, rows, part, [](double& a, double b) { a += b; });
    C* const counts = call.outputs[0].template data<C>();
    for (size_t row = 0; row < ties.size(); ++row) counts[row] = static_cast<C>(ties[row]);
  });
}

// d|x|_p / dx.
// In quotients x / y, at most 1, and not in powers of x, which would leave the range of float. At 0 the slope
// is 0, which is a subgradient for p >= 1.
template <class C>
C Slope(C x, C y, double p) {
  const C sign = x > 0 ? C(1) : x < 0 ? C(-1) : x;  // nan stays
  if (std::isinf(p)) return std::abs(x) == y ? sign : C(0);
  if (p == 1) return sign;
  if (y == 0 || x == 0) return 0;
  if (p == 2) return x / y;
  return sign * static_cast<C>(std::pow(std::abs(x) / y, static_cast<C>(p - 1)));
}

void VectorNormGrad(const Call& call) {
  const double p = call.attributes().p;
  MapReducedGradient(call, [p]<class C>(C* const* spans, int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const C y = spans[1][i];
      // A choice and not a product with a slope of 0: where y is 0, dy may be infinite.
      spans[3][i] = y == 0 ? C(0) : Slope(spans[0][i], y, p) * spans[2][i];
    }
  });
}

const RegisterKernel kRegister[] = {
    {kVectorNorm, DeviceType::kCpu, VectorNorm},
    {kVectorNormGrad, DeviceType::kCpu, VectorNormGrad},
    {kPowerSum, DeviceType::kCpu, PowerSum},
    {kNormTies, DeviceType::kCpu, NormTies},
};
const RegisterKernel kRegisterFinish(kNormFinish, DeviceType::kCpu, NormFinish);

}  // namespace
}  // namespace weft
