#include "ops/cpu/normalization/norm_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/normalization/norm_functions.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A vector [d], or a statistic [...], as C. Undefined tensors stay so, and read as absent.
template <class C>
class Numbers {
 public:
  Numbers(const Tensor& tensor, KernelContext& context) {
    if (!tensor.defined()) return;
    dense_ = tensor.dtype() == kDTypeOf<C> && tensor.IsContiguous()
                 ? tensor
                 : CastTensor(tensor, kDTypeOf<C>, context.allocator);
    data_ = dense_.data<C>();
  }

  const C* data() const { return data_; }
  // Element `i`, or 0 for an absent tensor.
  C At(int64_t i) const { return data_ == nullptr ? C(0) : data_[i]; }

 private:
  Tensor dense_;
  const C* data_ = nullptr;
};

template <class C>
C Mean(double sum, int64_t n) {
  return n == 0 ? C(0) : static_cast<C>(sum / static_cast<double>(n));
}

// Two passes for the variance, on a row that is in cache: E[x^2] - mean^2 would cancel, and
// Welford's update would be a chain of divisions. Sums are in double, and so is the root, whose
// argument is one number per row.
template <class T>
void Forward(const NormTensors& norm, double eps, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const int64_t n = x.num_columns;
  const Numbers<T> w(norm.w, context);
  const Numbers<T> b(norm.b, context);
  C* mean = norm.mean.defined() ? norm.mean.data<C>() : nullptr;
  C* rstd = norm.rstd.data<C>();
  const RowFunctions<T>& rows = Rows<T>();
  const NormFunctions<T>& functions = NormRows<T>();
  const TypedRows<const T> from = ReadRows<T>(x);
  const TypedRows<T> to = WriteRows<T>(norm.y, n);
  ParallelForRows(context, x.num_rows, n, [&](int64_t begin, int64_t end) {
    // Three rows at once, each a step behind the next: a step waits for what the one before added up, and
    // the processor meanwhile has another row to go on with.
    // Of RMS norm, mean is null and the first of the three steps falls away: its square sum is a dot of the
    // row with itself.
    for (int64_t row = begin; row < end + 2; ++row) {
      if (const int64_t i = row - 2; i >= begin) {
        const C row_mean = mean == nullptr ? C(0) : mean[i];
        functions.normalize(from[i], w.data(), b.data(), n, row_mean, rstd[i], to[i]);
      }
      if (const int64_t i = row - 1; i >= begin && i < end) {
        const double squares =
            mean == nullptr ? rows.dot(from[i], from[i], n) : rows.centered_squares(from[i], n, mean[i]);
        rstd[i] = static_cast<C>(1 / std::sqrt((n == 0 ? 0 : squares / static_cast<double>(n)) + eps));
      }
      if (row < end && mean != nullptr) mean[row] = Mean<C>(rows.sum(from[row], n), n);
    }
  });
}

// Where rows are split: the statistics came by all-reduce, so a row is read once and nothing of it is summed.
template <class T>
void Apply(const NormTensors& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const Numbers<T> w(norm.w, context);
  const Numbers<T> b(norm.b, context);
  const Numbers<C> mean(norm.mean, context);
  const Numbers<C> rstd(norm.rstd, context);
  const TypedRows<const T> from = ReadRows<T>(x);
  const TypedRows<T> to = WriteRows<T>(norm.y, x.num_columns);
  ParallelForRows(context, x.num_rows, x.num_columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      NormRows<T>().normalize(from[row], w.data(), b.data(), x.num_columns, mean.At(row), rstd.At(row),
                              to[row]);
    }
  });
}

// What the kernels of backward read.
template <class T>
struct GradOperands {
  using C = ComputeType<T>;

  GradOperands(const NormTensors& norm, KernelContext& context)
      : x_view(RowsOf(norm.x, context)),
        dy_view(RowsOf(norm.dy, context)),
        w(norm.w, context),
        mean(norm.mean, context),
        rstd(norm.rstd, context),
        num_rows(x_view.num_rows),
        n(x_view.num_columns),
        x(ReadRows<T>(x_view)),
        dy(ReadRows<T>(dy_view)) {}

  const RowView x_view, dy_view;
  const Numbers<T> w;
  const Numbers<C> mean, rstd;
  const int64_t num_rows;
  const int64_t n;  // columns
  const TypedRows<const T> x, dy;
};

// to[column] = the sum over blocks of partial[block, which, place of the column], where partial is
// [num_blocks, num_vectors, places].
// Blocks are added in double and in their order, each column by one task. Tasks take columns and not blocks,
// so they share no sum.
template <class T>
void AddBlocks(const ComputeType<T>* partial, int64_t num_blocks, int64_t num_vectors, int64_t which,
               const Tensor& to, KernelContext& context) {
  if (!to.defined()) return;
  using C = ComputeType<T>;
  T* out = to.data<T>();
  const NormFunctions<T>& functions = NormRows<T>();
  const int64_t n = to.num_elements();
  const int64_t places = functions.NumSums(n);
  context.pool.ParallelFor(places, /*grain=*/256, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(end - begin, 0.0);
    for (int64_t block = 0; block < num_blocks; ++block) {
      const C* from = partial + (block * num_vectors + which) * places + begin;
      for (int64_t i = 0; i < end - begin; ++i) sums[i] += static_cast<double>(from[i]);
    }
    for (int64_t i = 0; i < end - begin; ++i) {
      const int64_t column = functions.ColumnOfSum(begin + i);
      if (column < n) out[column] = static_cast<T>(static_cast<C>(sums[i]));
    }
  });
}

// dw and db sum over all rows, dx over none: so blocks of rows are the tasks, each with sums of its own.
// Their number follows from the rows alone, as the bits do. A row is read twice, for its two sums and then
// for dx, the second time from cache.
template <class T>
void Backward(const NormTensors& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const GradOperands<T> of(norm, context);
  const NormFunctions<T>& rows = NormRows<T>();

  // At most 64 blocks bound the workspace; at least 16 rows each keep adding them up cheap.
  const int64_t block_rows = std::max<int64_t>(16, (of.num_rows + 63) / 64);
  const int64_t num_blocks = (of.num_rows + block_rows - 1) / block_rows;
  const int64_t num_vectors = norm.db.defined() ? 2 : 1;
  const int64_t places = rows.NumSums(of.n);
  const Tensor workspace = Tensor::Empty(context.allocator, kDTypeOf<C>, {num_blocks, num_vectors, places});
  C* partial = workspace.data<C>();
  const TypedRows<T> to = norm.dx.defined() ? WriteRows<T>(norm.dx, of.n) : TypedRows<T>();
  context.pool.Run(num_blocks, [&](int64_t block) {
    C* dw = partial + block * num_vectors * places;
    C* db = num_vectors == 2 ? dw + places : nullptr;
    std::fill(dw, dw + num_vectors * places, C(0));
    const int64_t begin = block * block_rows;
    const int64_t end = std::min(of.num_rows, begin + block_rows);
    for (int64_t row = begin; row < end; ++row) {
      const C m = of.mean.At(row);
      const C r = of.rstd.At(row);
      // w is not read without dx, and may be undefined then.
      if (to.data == nullptr) {
        rows.weight_grad(of.x[row], of.dy[row], of.n, m, r, dw, db);
        continue;
      }
      const NormSums sums = rows.grad_sums(of.x[row], of.w.data(), of.dy[row], of.n, m, r, dw, db);
      const C g_mean = norm.mean.defined() ? Mean<C>(sums.g, of.n) : C(0);
      const C gn_mean = Mean<C>(sums.g_centered * r, of.n);
      rows.grad(of.x[row], of.w.data(), of.dy[row], of.n, m, r, g_mean, gn_mean, to[row]);
    }
  });
  AddBlocks<T>(partial, num_blocks, num_vectors, /*which=*/0, norm.dw, context);
  AddBlocks<T>(partial, num_blocks, num_vectors, /*which=*/1, norm.db, context);
}

// A sum over the global extent: the pieces of a split row add up to the means of the whole.
template <class T>
void GradMeans(const NormTensors& norm, int64_t global_columns, KernelContext& context) {
  using C = ComputeType<T>;
  const GradOperands<T> of(norm, context);
  C* g_mean = norm.g_mean.defined() ? norm.g_mean.data<C>() : nullptr;
  C* gn_mean = norm.gn_mean.data<C>();
  ParallelForRows(context, of.num_rows, of.n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const gradient = of.dy[row];
      if (g_mean != nullptr)
        g_mean[row] = Mean<C>(Rows<T>().dot(gradient, of.w.data(), of.n), global_columns);
      const double dot = NormRows<T>().grad_dot(of.x[row], of.w.data(), gradient, of.n, of.mean.At(row));
      gn_mean[row] = Mean<C>(dot * of.rstd.At(row), global_columns);
    }
  });
}

template <class T>
void GradApply(const NormTensors& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const GradOperands<T> of(norm, context);
  const Numbers<C> g_mean(norm.g_mean, context);
  const Numbers<C> gn_mean(norm.gn_mean, context);
  const TypedRows<T> to = WriteRows<T>(norm.dx, of.n);
  ParallelForRows(context, of.num_rows, of.n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      NormRows<T>().grad(of.x[row], of.w.data(), of.dy[row], of.n, of.mean.At(row), of.rstd.At(row),
                         g_mean.At(row), gn_mean.At(row), to[row]);
    }
  });
}

}  // namespace

void RunNormForward(const NormTensors& norm, double eps, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op,
                [&](auto tag) { Forward<typename decltype(tag)::type>(norm, eps, context); });
}

void RunNormApply(const NormTensors& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op, [&](auto tag) { Apply<typename decltype(tag)::type>(norm, context); });
}

void RunNormBackward(const NormTensors& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op, [&](auto tag) { Backward<typename decltype(tag)::type>(norm, context); });
}

void RunNormGradMeans(const NormTensors& norm, int64_t global_columns, absl::string_view op,
                      KernelContext& context) {
  VisitFloating(norm.x.dtype(), op,
                [&](auto tag) { GradMeans<typename decltype(tag)::type>(norm, global_columns, context); });
}

void RunNormGradApply(const NormTensors& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op,
                [&](auto tag) { GradApply<typename decltype(tag)::type>(norm, context); });
}

}  // namespace weft
