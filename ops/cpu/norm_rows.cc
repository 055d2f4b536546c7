#include "ops/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "ops/cpu/row_view.h"
#include "ops/cpu/rows.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A vector [d] or a statistic [...] in the compute type C. Undefined tensors stay so, and read as absent.
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

template <class T>
void Forward(const NormForward& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const int64_t n = x.num_columns;
  const Numbers<C> w(norm.w, context);
  const Numbers<C> b(norm.b, context);
  C* mean = norm.mean.defined() ? norm.mean.data<C>() : nullptr;
  C* rstd = norm.rstd.data<C>();
  const RowFunctions<C>& rows = Rows<C>();
  ParallelForRows(context, x.num_rows, n, [&](int64_t begin, int64_t end) {
    RowReader<T> read(x);
    RowWriter<T> write(norm.y, n);
    for (int64_t row = begin; row < end; ++row) {
      const C* values = read.Read(row);
      const C row_mean = mean == nullptr ? C(0) : Mean<C>(rows.sum(values, n), n);
      const double squares =
          mean == nullptr ? rows.dot(values, values, n) : rows.centered_squares(values, n, row_mean);
      const C row_rstd =
          static_cast<C>(1 / std::sqrt((n == 0 ? 0 : squares / static_cast<double>(n)) + norm.eps));
      rows.normalize(values, w.data(), b.data(), n, row_mean, row_rstd, write.Row(row));
      write.Done();
      if (mean != nullptr) mean[row] = row_mean;
      rstd[row] = row_rstd;
    }
  });
}

template <class T>
void Apply(const NormApply& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const Numbers<C> w(norm.w, context);
  const Numbers<C> b(norm.b, context);
  const Numbers<C> mean(norm.mean, context);
  const Numbers<C> rstd(norm.rstd, context);
  ParallelForRows(context, x.num_rows, x.num_columns, [&](int64_t begin, int64_t end) {
    RowReader<T> read(x);
    RowWriter<T> write(norm.y, x.num_columns);
    for (int64_t row = begin; row < end; ++row) {
      Rows<C>().normalize(read.Read(row), w.data(), b.data(), x.num_columns, mean.At(row), rstd.At(row),
                          write.Row(row));
      write.Done();
    }
  });
}

// to[i] = sum over blocks of partial[block, which, i], where partial is [num_blocks, num_vectors, n].
template <class T, class C>
void AddBlocks(const C* partial, int64_t num_blocks, int64_t num_vectors, int64_t which, int64_t n,
               const Tensor& to, KernelContext& context) {
  if (!to.defined()) return;
  T* out = to.data<T>();
  context.pool.ParallelFor(n, /*grain=*/256, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(end - begin, 0.0);
    for (int64_t block = 0; block < num_blocks; ++block) {
      const C* from = partial + (block * num_vectors + which) * n + begin;
      for (int64_t i = 0; i < end - begin; ++i) sums[i] += static_cast<double>(from[i]);
    }
    for (int64_t i = 0; i < end - begin; ++i) out[begin + i] = static_cast<T>(static_cast<C>(sums[i]));
  });
}

template <class T>
void Backward(const NormBackward& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const RowView dy = RowsOf(norm.dy, context);
  const int64_t n = x.num_columns;
  const Numbers<C> w(norm.w, context);
  const Numbers<C> mean(norm.mean, context);
  const Numbers<C> rstd(norm.rstd, context);
  const RowFunctions<C>& rows = Rows<C>();

  // At most 64 blocks bound the workspace; at least 16 rows each keep adding them up cheap.
  const int64_t block_rows = std::max<int64_t>(16, (x.num_rows + 63) / 64);
  const int64_t num_blocks = (x.num_rows + block_rows - 1) / block_rows;
  const int64_t num_vectors = norm.db.defined() ? 2 : 1;
  const Tensor workspace = Tensor::Empty(context.allocator, kDTypeOf<C>, {num_blocks, num_vectors, n});
  C* partial = workspace.data<C>();
  context.pool.Run(num_blocks, [&](int64_t block) {
    C* dw = partial + block * num_vectors * n;
    C* db = num_vectors == 2 ? dw + n : nullptr;
    std::fill(dw, dw + num_vectors * n, C(0));
    RowReader<T> read_x(x);
    RowReader<T> read_dy(dy);
    std::optional<RowWriter<T>> write;
    if (norm.dx.defined()) write.emplace(norm.dx, n);
    const int64_t end = std::min(x.num_rows, (block + 1) * block_rows);
    for (int64_t row = block * block_rows; row < end; ++row) {
      const C* values = read_x.Read(row);
      const C* gradient = read_dy.Read(row);
      const C m = mean.At(row);
      const C r = rstd.At(row);
      if (!write) {
        rows.norm_weight_grad(values, gradient, n, m, r, dw, db);
        continue;
      }
      const NormSums sums = rows.norm_grad_sums(values, w.data(), gradient, n, m, r, dw, db);
      const C g_mean = norm.mean.defined() ? Mean<C>(sums.g, n) : C(0);
      const C gn_mean = Mean<C>(sums.g_centered * r, n);
      rows.norm_grad(values, w.data(), gradient, n, m, r, g_mean, gn_mean, write->Row(row));
      write->Done();
    }
  });
  AddBlocks<T>(partial, num_blocks, num_vectors, /*which=*/0, n, norm.dw, context);
  AddBlocks<T>(partial, num_blocks, num_vectors, /*which=*/1, n, norm.db, context);
}

template <class T>
void GradMeans(const NormGradMeans& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const RowView dy = RowsOf(norm.dy, context);
  const int64_t n = x.num_columns;
  const Numbers<C> w(norm.w, context);
  const Numbers<C> mean(norm.mean, context);
  const Numbers<C> rstd(norm.rstd, context);
  C* g_mean = norm.g_mean.defined() ? norm.g_mean.data<C>() : nullptr;
  C* gn_mean = norm.gn_mean.data<C>();
  ParallelForRows(context, x.num_rows, n, [&](int64_t begin, int64_t end) {
    RowReader<T> read_x(x);
    RowReader<T> read_dy(dy);
    for (int64_t row = begin; row < end; ++row) {
      const C* values = read_x.Read(row);
      const C* gradient = read_dy.Read(row);
      if (g_mean != nullptr) g_mean[row] = Mean<C>(Rows<C>().dot(gradient, w.data(), n), norm.global_columns);
      const double dot = Rows<C>().norm_grad_dot(values, w.data(), gradient, n, mean.At(row));
      gn_mean[row] = Mean<C>(dot * rstd.At(row), norm.global_columns);
    }
  });
}

template <class T>
void GradApply(const NormGradApply& norm, KernelContext& context) {
  using C = ComputeType<T>;
  const RowView x = RowsOf(norm.x, context);
  const RowView dy = RowsOf(norm.dy, context);
  const int64_t n = x.num_columns;
  const Numbers<C> w(norm.w, context);
  const Numbers<C> mean(norm.mean, context);
  const Numbers<C> rstd(norm.rstd, context);
  const Numbers<C> g_mean(norm.g_mean, context);
  const Numbers<C> gn_mean(norm.gn_mean, context);
  ParallelForRows(context, x.num_rows, n, [&](int64_t begin, int64_t end) {
    RowReader<T> read_x(x);
    RowReader<T> read_dy(dy);
    RowWriter<T> write(norm.dx, n);
    for (int64_t row = begin; row < end; ++row) {
      Rows<C>().norm_grad(read_x.Read(row), w.data(), read_dy.Read(row), n, mean.At(row), rstd.At(row),
                          g_mean.At(row), gn_mean.At(row), write.Row(row));
      write.Done();
    }
  });
}

}  // namespace

void RunNormForward(const NormForward& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op, [&](auto tag) { Forward<typename decltype(tag)::type>(norm, context); });
}

void RunNormApply(const NormApply& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op, [&](auto tag) { Apply<typename decltype(tag)::type>(norm, context); });
}

void RunNormBackward(const NormBackward& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op, [&](auto tag) { Backward<typename decltype(tag)::type>(norm, context); });
}

void RunNormGradMeans(const NormGradMeans& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op,
                [&](auto tag) { GradMeans<typename decltype(tag)::type>(norm, context); });
}

void RunNormGradApply(const NormGradApply& norm, absl::string_view op, KernelContext& context) {
  VisitFloating(norm.x.dtype(), op,
                [&](auto tag) { GradApply<typename decltype(tag)::type>(norm, context); });
}

}  // namespace weft
