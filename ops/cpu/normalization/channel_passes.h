#ifndef WEFT_OPS_CPU_NORMALIZATION_CHANNEL_PASSES_H_
#define WEFT_OPS_CPU_NORMALIZATION_CHANNEL_PASSES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ops/cpu/normalization/norm_functions.h"
#include "ops/cpu/normalization/widened_rows.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/cpu/spans/rows.h"
#include "ops/normalization/channel_norm.h"
#include "ops/op/kernel_call.h"

namespace weft {

// The passes over x that channel_norm and its gradient are made of.

using ChannelNormCall = KernelCall<ChannelNormAttributes, NoScalars>;

// Rows this short cost more in calls than in sums.
inline constexpr int64_t kShortRow = 16;

// Rows, or statistics, from one to before another.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Local x [n, c, ...] as rows, one for each image and channel, and which numbers belong to a row.
struct ChannelRows {
  ChannelRows(const ChannelNormAttributes& a, const ShardBox& box) : n(box.shape[0]), c(box.shape[1]) {
    int64_t global_elements = 1;
    for (int dim = 2; dim < box.shape.ndim(); ++dim) {
      elements *= box.shape[dim];
      global_elements *= box.global_shape[dim];
    }
    offset = box.offset[1];
    groups = a.groups;
    if (groups > 0) group_channels = box.global_shape[1] / groups;
    count = static_cast<double>(global_elements) *
            static_cast<double>(groups == 0 ? box.global_shape[0] : group_channels);
  }

  int64_t num_rows() const { return n * c; }
  int64_t num_statistics() const { return groups == 0 ? c : n * groups; }
  int64_t Statistic(int64_t row) const {
    return groups == 0 ? row % c : row / c * groups + (offset + row % c) / group_channels;
  }

  // Calls body(row, channel, statistic) for the rows of the range, in order.
  template <class Body>
  void ForEach(RowRange range, const Body& body) const {
    for (int64_t row = range.begin; row < range.end;) {
      const int64_t channel = row % c;
      const int64_t statistic = Statistic(row);
      // Up to the end of the image or group, numbers count on: a division each would cost more than short
      // rows.
      const int64_t last =
          groups == 0 ? c : std::min(c, ((offset + channel) / group_channels + 1) * group_channels - offset);
      const int64_t count = std::min(range.end - row, last - channel);
      for (int64_t i = 0; i < count; ++i) body(row + i, channel + i, groups == 0 ? statistic + i : statistic);
      row += count;
    }
  }
  // The statistics that rows of the range may have.
  RowRange StatisticsOf(RowRange range) const {
    if (groups == 0) return {0, c};
    if (range.begin == range.end) return {};
    return {Statistic(range.begin), Statistic(range.end - 1) + 1};
  }

  int64_t n;
  int64_t c;
  int64_t elements = 1;  // of a row
  int64_t offset = 0;    // of the first local channel
  int64_t groups = 0;
  int64_t group_channels = 1;
  double count = 0;  // elements that share a statistic, in the global tensor
};

// The passes over x that the ops are made of, on ranges of rows. Sums are kept in double.
template <class T>
class ChannelPasses {
 public:
  using C = ComputeType<T>;

  explicit ChannelPasses(const ChannelNormCall& call)
      : rows_(call.attributes(), call.input_boxes[0]),
        eps_(call.attributes().eps),
        context_(call.context),
        x_(View(call.inputs[0])),
        ones_(rows_.elements < kShortRow ? 0 : rows_.elements, C(1)) {}

  const ChannelRows& rows() const { return rows_; }

  // Runs body on ranges that cover all rows; with `whole_groups`, of which none cuts a group, so that body
  // may go from elements to statistics and back while they are in cache.
  void ForEachRange(bool whole_groups, absl::FunctionRef<void(RowRange)> body) const {
    const int64_t step = whole_groups ? rows_.group_channels : 1;
    const int64_t pieces = step == 0 ? 0 : rows_.num_rows() / step;
    ParallelForRows(context_, pieces, step * rows_.elements, [&](int64_t begin, int64_t end) {
      body({begin * step, end * step});
    });
  }

  // sums[row] = sum x; sum (x - mean)^2.
  void Sums(RowRange range, double* sums) const {
    RowReader<T> read(x_);
    for (int64_t row = range.begin; row < range.end; ++row) sums[row] = Sum(read.Read(row));
  }
  void Squares(RowRange range, const C* mean, double* sums) const {
    RowReader<T> read(x_);
    rows_.ForEach(range, [&](int64_t row, int64_t, int64_t s) {
      sums[row] = CenteredSquares(read.Read(row), mean[s]);
    });
  }
  // means[statistic] = (sum over its rows of weight[channel] * sums[row]) / count; no weights: 1.
  void Means(RowRange range, const double* sums, const C* weight, C* means) const {
    if (range.begin == range.end) return;
    const RowRange own = rows_.StatisticsOf(range);
    std::vector<double> total(own.end - own.begin, 0.0);
    rows_.ForEach(range, [&](int64_t row, int64_t channel, int64_t s) {
      const double w = weight == nullptr ? 1 : static_cast<double>(weight[channel]);
      total[s - own.begin] += w * sums[row];
    });
    for (int64_t s = own.begin; s < own.end; ++s) {
      means[s] = static_cast<C>(rows_.count == 0 ? 0 : total[s - own.begin] / rows_.count);
    }
  }
  // rstd = 1 / sqrt(variance + eps).
  void Rstds(RowRange range, const C* variance, C* rstd) const {
    const RowRange own = rows_.StatisticsOf(range);
    for (int64_t s = own.begin; s < own.end; ++s) {
      rstd[s] = static_cast<C>(1 / std::sqrt(static_cast<double>(variance[s]) + eps_));
    }
  }
  // y = (x - mean) * rstd * w + b.
  void Apply(RowRange range, const C* w, const C* b, const C* mean, const C* rstd, const Tensor& y) const {
    RowReader<T> read(x_);
    RowWriter<T> write(y, rows_.elements);
    rows_.ForEach(range, [&](int64_t row, int64_t channel, int64_t s) {
      const C* const from = read.Read(row);
      C* const to = write.Row(row);
      const C scale = rstd[s] * w[channel];
      for (int64_t i = 0; i < rows_.elements; ++i) to[i] = (from[i] - mean[s]) * scale + b[channel];
      write.Done();
    });
  }
  // sums[row] = sum dy; dots[row] = sum dy * (x - mean) * rstd.
  void GradSums(RowRange range, const RowView& dy, const C* mean, const C* rstd, double* sums,
                double* dots) const {
    RowReader<T> read(x_);
    RowReader<T> read_dy(dy);
    rows_.ForEach(range, [&](int64_t row, int64_t, int64_t s) {
      const C* const gradient = read_dy.Read(row);
      sums[row] = Sum(gradient);
      dots[row] = CenteredDot(read.Read(row), gradient, mean[s]) * static_cast<double>(rstd[s]);
    });
  }
  // dx = rstd * (dy * w - g_mean - (x - mean) * rstd * gh_mean).
  void GradApply(RowRange range, const RowView& dy, const C* w, const C* mean, const C* rstd, const C* g_mean,
                 const C* gh_mean, const Tensor& dx) const {
    RowReader<T> read(x_);
    RowReader<T> read_dy(dy);
    RowWriter<T> write(dx, rows_.elements);
    rows_.ForEach(range, [&](int64_t row, int64_t channel, int64_t s) {
      const C dy_factor = rstd[s] * w[channel];
      const C x_factor = -rstd[s] * rstd[s] * gh_mean[s];
      const C constant = -rstd[s] * g_mean[s];
      const C* const from = read.Read(row);
      const C* const gradient = read_dy.Read(row);
      C* const to = write.Row(row);
      for (int64_t i = 0; i < rows_.elements; ++i) {
        to[i] = dy_factor * gradient[i] + x_factor * (from[i] - mean[s]) + constant;
      }
      write.Done();
    });
  }

  RowView View(const Tensor& tensor) const {
    return RowsOf(Dense(tensor, context_).Reshape({rows_.num_rows(), rows_.elements}), context_);
  }

 private:
  double Sum(const C* x) const {
    if (rows_.elements >= kShortRow) return Rows<C>().sum(x, rows_.elements);
    double sum = 0;
    for (int64_t i = 0; i < rows_.elements; ++i) sum += static_cast<double>(x[i]);
    return sum;
  }
  double CenteredSquares(const C* x, C mean) const {
    if (rows_.elements >= kShortRow) return Rows<C>().centered_squares(x, rows_.elements, mean);
    double sum = 0;
    for (int64_t i = 0; i < rows_.elements; ++i) {
      const double centered = static_cast<double>(x[i] - mean);
      sum += centered * centered;
    }
    return sum;
  }
  double CenteredDot(const C* x, const C* dy, C mean) const {
    if (rows_.elements >= kShortRow) {
      return NormRows<C>().grad_dot(x, ones_.data(), dy, rows_.elements, mean);
    }
    double sum = 0;
    for (int64_t i = 0; i < rows_.elements; ++i) {
      sum += static_cast<double>(x[i] - mean) * static_cast<double>(dy[i]);
    }
    return sum;
  }

  ChannelRows rows_;
  double eps_;
  KernelContext& context_;
  RowView x_;
  std::vector<C> ones_;
};

}  // namespace weft

#endif  // WEFT_OPS_CPU_NORMALIZATION_CHANNEL_PASSES_H_
