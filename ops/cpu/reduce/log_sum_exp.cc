#include "ops/reduce/log_sum_exp.h"

#include <cmath>
#include <limits>

#include "ops/cpu/reduce/reduced_gradient.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<ReduceAttributes, NoScalars>;

// The maximum of elements and sum exp(x - max); 0 where the maximum is not finite.
struct ShiftedSum {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
};

double Finish(double max, double sum) { return std::isfinite(max) ? max + std::log(sum) : max; }

// A nan or an inf outdoes the rest.
// Parts of a row, each with a shift of its own, meet as in online softmax (Milakov and Gimelshein, arXiv
// 1805.02867): the sum of the smaller maximum is brought to the larger one, by a factor of at most 1.
void Merge(ShiftedSum& a, const ShiftedSum& b) {
  if (std::isnan(a.max) || b.max == -std::numeric_limits<double>::infinity()) return;
  if (b.max <= a.max) {
    a.sum += b.sum * std::exp(b.max - a.max);
    if (!std::isfinite(a.max)) a.sum = 0;
    return;
  }
  const double scaled = a.sum == 0 ? 0 : a.sum * std::exp(a.max - b.max);
  a = {b.max, scaled + b.sum};
}

void LogSumExpKernel(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "log_sum_exp", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], call.attributes().dims, call.context);
    // Two readings of a part, of at most 32768 elements, the second from cache. An infinite maximum has
    // nothing to add: inf - inf would make nan of it.
    const auto part = [](const C* x, int64_t n, int64_t, int64_t) -> ShiftedSum {
      const C max = Rows<C>().max(x, n);
      return {max, std::isfinite(max) ? Rows<C>().exp_sum(x, n, max) : 0};
    };
    const std::vector<ShiftedSum> sums = ReduceDimRows<T, ShiftedSum>(call.context, rows, part, Merge);
    T* const y = call.outputs[0].template data<T>();
    for (size_t row = 0; row < sums.size(); ++row)
      y[row] = ConvertElement<T>(Finish(sums[row].max, sums[row].sum));
  });
}

// The statistic of a split row: with the maximum of the whole row as shift, the pieces' sums add up as they
// are, and are all-reduced.
void ExpSum(const Call& call) {
  const Tensor max = Dense(call.inputs[1], call.context);
  VisitFloating(call.inputs[0].dtype(), "exp_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const DimRows rows = RowsAlong(call.inputs[0], call.attributes().dims, call.context);
    const T* const shifts = max.data<T>();
    const auto part = [&](const C* x, int64_t n, int64_t row, int64_t) {
      const C shift = ConvertElement<C>(shifts[row]);
      return std::isfinite(shift) ? Rows<C>().exp_sum(x, n, shift) : 0;
    };
    const std::vector<double> sums =
        ReduceDimRows<T, double>(call.context, rows, part, [](double& a, double b) { a += b; });
    C* const y = call.outputs[0].template data<C>();
    for (size_t row = 0; row < sums.size(); ++row) y[row] = static_cast<C>(sums[row]);
  });
}

// The sum came in the compute type by all-reduce; the logarithm is taken once per row, in double.
void LogSumExpFinish(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor max = Dense(call.inputs[0], call.context);
  const Tensor sum = Dense(call.inputs[1], call.context);
  VisitFloating(max.dtype(), "log_sum_exp_finish", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ArithmeticType<T>;
    const T* const m = max.data<T>();
    const C* const s = sum.data<C>();
    T* const y = call.outputs[0].template data<T>();
    call.context.pool.ParallelFor(max.num_elements(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        y[i] = ConvertElement<T>(Finish(ConvertElement<double>(m[i]), static_cast<double>(s[i])));
    });
  });
}

// exp(x - lse) is an element's share, so no maximum is needed again. A row of nothing but -inf has no shares;
// 0 is taken, and not the nan of their difference.
void LogSumExpGrad(const Call& call) {
  MapReducedGradient(call, []<class C>(C* const* spans, int64_t, int64_t n) {
    constexpr C kNothing = -std::numeric_limits<C>::infinity();
    for (int64_t i = 0; i < n; ++i) {
      const C log_share = spans[0][i] - spans[1][i];
      spans[3][i] = spans[1][i] == kNothing ? C(0) : std::exp(log_share) * spans[2][i];
    }
  });
}

const RegisterKernel kRegister[] = {
    {kLogSumExp, DeviceType::kCpu, LogSumExpKernel},
    {kLogSumExpGrad, DeviceType::kCpu, LogSumExpGrad},
    {kExpSum, DeviceType::kCpu, ExpSum},
};
const RegisterKernel kRegisterFinish(kLogSumExpFinish, DeviceType::kCpu, LogSumExpFinish);

}  // namespace
}  // namespace weft
