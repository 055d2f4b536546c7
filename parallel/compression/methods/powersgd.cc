// powersgd: a matrix as the product of two thin ones, found by one round of a power iteration.
//
// Source: Vogels et al., "PowerSGD: practical low-rank gradient compression", 2019; start step, warm start and which
//         tensors are worth it as torch.distributed's powerSGD_hook has them.

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/compression/methods/orthogonalize.h"
#include "parallel/compression/methods/values.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

constexpr double kLargest = int64_t{1} << 31;

struct PowerSgdOptions {
  int64_t rank = 1;
  uint64_t start_step = 0;  // sums are exact before it; in rounds (GradientBucket::round)
  double min_compression_rate = 2;
  bool warm_start = true;
  bool error_feedback = true;
};

// How a piece is a matrix.
struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// Of the ways to cut the dims in two the one with the least rows + cols; of a matrix its own.
MatrixShape AsMatrix(const Shape& shape) {
  const int64_t size = shape.num_elements();
  MatrixShape best = {size, 1};
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < shape.ndim() && size > 0; ++dim) {
    rows *= shape[dim];
    if (rows + size / rows < best.rows + best.cols || dim == 0) best = {rows, size / rows};
  }
  return best;
}

// One gradient under way.
struct LowRankPart {
  const GradientPart* part = nullptr;
  MatrixShape shape;
  Tensor left;        // P [rows, r]: M Q, then an orthonormal basis of it
  Tensor right;       // Q [cols, r]: transpose(M) P
  Tensor right_here;  // of this rank's M
};

class LowRankSum {
 public:
  LowRankSum(std::shared_ptr<GradientBucket> bucket, const PowerSgdOptions& options)
      : bucket_(std::move(bucket)), options_(options) {}

  std::vector<LowRankPart>& parts() { return parts_; }

  // Q: that of the last round, or random where there is none, alike on every rank.
  void MultiplyRight() const {
    for (const LowRankPart& low : parts_) {
      AddResidual(*low.part, options_.error_feedback);
      OnValues(low.part->gradient, [&](auto m) {
        using T = typename decltype(m)::value_type;
        const absl::Span<T> q(low.right.data<T>(), low.right.num_elements());
        std::fill(q.begin(), q.end(), T{0});
        if (options_.warm_start) {
          std::copy_n(low.part->state.back().template data<T>(), q.size(), q.begin());
        }
        FillEmptyColumns(*low.part, q);
        Multiply<T>(low, m, q, absl::MakeSpan(low.left.data<T>(), low.left.num_elements()));
      });
    }
  }

  void MultiplyLeft() const {
    for (const LowRankPart& low : parts_) {
      OnValues(low.part->gradient, [&](auto m) {
        using T = typename decltype(m)::value_type;
        const absl::Span<T> p(low.left.data<T>(), low.left.num_elements());
        if (AllFinite<T>(p)) Orthogonalize(p, options_.rank);
        const absl::Span<T> q(low.right.data<T>(), low.right.num_elements());
        MultiplyTransposed<T>(low, m, p, q);
        std::copy(q.begin(), q.end(), low.right_here.data<T>());
      });
    }
  }

  // The sum is P transpose(Q); what a rank's own product leaves of its M is its residual.
  void Decode() const {
    for (const LowRankPart& low : parts_) {
      OnValues(low.part->gradient, [&](auto m) {
        using T = typename decltype(m)::value_type;
        const absl::Span<const T> p(low.left.data<T>(), low.left.num_elements());
        const absl::Span<const T> q(low.right.data<T>(), low.right.num_elements());
        if (!AllFinite<T>(p) || !AllFinite<T>(q)) {
          std::fill(m.begin(), m.end(), std::numeric_limits<T>::quiet_NaN());
          return;
        }
        if (options_.error_feedback) {
          T* const residual = low.part->state[0].template data<T>();
          const absl::Span<const T> here(low.right_here.data<T>(), low.right_here.num_elements());
          ForProduct<T>(low, p, here, [&](int64_t i, double value) {
            residual[i] = static_cast<T>(static_cast<double>(m[i]) - value);
          });
        }
        ForProduct<T>(low, p, q, [&](int64_t i, double value) { m[i] = static_cast<T>(value); });
        if (options_.warm_start) {
          std::copy(q.begin(), q.end(), low.part->state.back().template data<T>());
        }
      });
    }
  }

 private:
  // Columns to length 1, and new ones for those that are 0: a gradient of lower rank leaves some, for ever otherwise.
  template <class T>
  void FillEmptyColumns(const GradientPart& part, absl::Span<T> q) const {
    const RandomKey key = {.seed = bucket_->seed(), .stream = StreamOf(part.path), .step = bucket_->round()};
    const auto rank = static_cast<size_t>(options_.rank);
    for (size_t column = 0; column < rank; ++column) {
      double square = 0;
      for (size_t i = column; i < q.size(); i += rank) square += static_cast<double>(q[i]) * q[i];
      const double length = std::sqrt(square);
      for (size_t i = column; i < q.size(); i += rank) {
        q[i] = static_cast<T>(length > 0 ? q[i] / length : NormalAt(key, i));
      }
    }
  }

  // [rows, cols] x [cols, r] -> [rows, r]
  template <class T>
  void Multiply(const LowRankPart& low, absl::Span<const T> m, absl::Span<const T> q, absl::Span<T> p) const {
    const int64_t rank = options_.rank;
    std::vector<double> sums(rank);
    for (int64_t row = 0; row < low.shape.rows; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t col = 0; col < low.shape.cols; ++col) {
        const double value = m[row * low.shape.cols + col];
        for (int64_t r = 0; r < rank; ++r) sums[r] += value * q[col * rank + r];
      }
      std::copy(sums.begin(), sums.end(), p.begin() + row * rank);
    }
  }

  // [cols, rows] x [rows, r] -> [cols, r]
  template <class T>
  void MultiplyTransposed(const LowRankPart& low, absl::Span<const T> m, absl::Span<const T> p,
                          absl::Span<T> q) const {
    const int64_t rank = options_.rank;
    std::vector<double> sums(low.shape.cols * rank);
    for (int64_t row = 0; row < low.shape.rows; ++row) {
      for (int64_t col = 0; col < low.shape.cols; ++col) {
        const double value = m[row * low.shape.cols + col];
        for (int64_t r = 0; r < rank; ++r) sums[col * rank + r] += value * p[row * rank + r];
      }
    }
    std::copy(sums.begin(), sums.end(), q.begin());
  }

  // [rows, r] x [r, cols], element by element.
  template <class T, class Function>
  void ForProduct(const LowRankPart& low, absl::Span<const T> p, absl::Span<const T> q,
                  const Function& function) const {
    const int64_t rank = options_.rank;
    for (int64_t row = 0; row < low.shape.rows; ++row) {
      for (int64_t col = 0; col < low.shape.cols; ++col) {
        double value = 0;
        for (int64_t r = 0; r < rank; ++r) {
          value += static_cast<double>(p[row * rank + r]) * q[col * rank + r];
        }
        function(row * low.shape.cols + col, value);
      }
    }
  }

  const std::shared_ptr<GradientBucket> bucket_;
  const PowerSgdOptions options_;
  std::vector<LowRankPart> parts_;
};

// Gradients that are not worth it, and all before the start step, are summed as they are, beside the first product.
//
// Cost: two all-reduces: 2 (n-1) (rows + cols) r elements per matrix, 2 (n-1) m per other gradient. ReduceScatter: as much
//       per matrix, (n-1) m per other.
class PowerSgd final : public Compressor {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options) {}

  std::vector<CompressorState> State(const Shape& piece) const override {
    if (!IsWorthIt(piece)) return {};
    std::vector<CompressorState> state = ResidualState(options_.error_feedback);
    if (options_.warm_start) {
      state.push_back({.name = "right", .shared_elements = AsMatrix(piece).cols * options_.rank});
    }
    return state;
  }

  Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const override {
    const auto sum = std::make_shared<LowRankSum>(bucket, options_);
    std::vector<CollectivePart> first;
    for (const GradientPart& part : bucket->parts()) {
      if (IsLowRank(*bucket, part)) {
        first.push_back(AddTo(*sum, *bucket, part));
      } else {
        first.push_back({.input = part.gradient, .output = part.gradient});
      }
    }
    Issue(sum, *bucket, first);
    return bucket->works().back();
  }

  // Thin matrices are summed whole; of their product a rank keeps its box.
  Work ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const override {
    const auto sum = std::make_shared<LowRankSum>(bucket, options_);
    std::vector<CollectivePart> first, exact;
    for (const GradientPart& part : bucket->parts()) {
      if (IsLowRank(*bucket, part)) {
        first.push_back(AddTo(*sum, *bucket, part));
      } else {
        exact.push_back(PackForOwners(*bucket, part));
      }
    }
    bucket->Add(bucket->group().ReduceScatterEach(exact, ReduceOp::kSum, bucket->options()));
    Issue(sum, *bucket, first);
    bucket->Run([sum, rank = bucket->group().rank()] {
      for (const LowRankPart& low : sum->parts()) low.part->TakeOwned(rank);
    });
    return bucket->works().empty() ? Work() : bucket->works().back();
  }

 private:
  bool IsLowRank(const GradientBucket& bucket, const GradientPart& part) const {
    return bucket.round() >= options_.start_step && IsWorthIt(part.gradient.shape());
  }

  // Returns its first product, to be summed.
  CollectivePart AddTo(LowRankSum& sum, const GradientBucket& bucket, const GradientPart& part) const {
    const MatrixShape shape = AsMatrix(part.gradient.shape());
    const DType dtype = part.gradient.dtype();
    sum.parts().push_back({.part = &part,
                           .shape = shape,
                           .left = bucket.NewTensor(dtype, shape.rows * options_.rank),
                           .right = bucket.NewTensor(dtype, shape.cols * options_.rank),
                           .right_here = bucket.NewTensor(dtype, shape.cols * options_.rank)});
    return {.input = sum.parts().back().left, .output = sum.parts().back().left};
  }

  // The gradient as its owners' boxes, one behind the other: to be reduce-scattered as it is.
  static CollectivePart PackForOwners(GradientBucket& bucket, const GradientPart& part) {
    CollectivePart exact = {
        .input = bucket.NewTensor(part.gradient.dtype(), part.gradient.num_elements()),
        .output = part.owned.Reshape({part.owned.num_elements()}),
        .counts = {},
    };
    for (const ElementBox& box : part.boxes) exact.counts.push_back(box.num_elements());
    bucket.Run([gradient = part.gradient, packed = exact.input, boxes = part.boxes] {
      OnValues(gradient, [&](auto values) {
        using T = typename decltype(values)::value_type;
        T* to = packed.template data<T>();
        for (const ElementBox& box : boxes) {
          box.ForEachRun(
              [&](int64_t begin, int64_t length) { to = std::copy_n(values.begin() + begin, length, to); });
        }
      });
    });
    return exact;
  }

  // The two sums, `first` among them what is summed beside the first product.
  static void Issue(const std::shared_ptr<LowRankSum>& sum, GradientBucket& bucket,
                    const std::vector<CollectivePart>& first) {
    std::vector<CollectivePart> second;
    for (const LowRankPart& low : sum->parts()) second.push_back({.input = low.right, .output = low.right});
    const CommOptions& options = bucket.options();
    bucket.Run([sum] { sum->MultiplyRight(); });
    bucket.Add(bucket.group().AllReduceEach(first, ReduceOp::kSum, options));
    if (second.empty()) return;
    bucket.Run([sum] { sum->MultiplyLeft(); });
    bucket.Add(bucket.group().AllReduceEach(second, ReduceOp::kSum, options));
    bucket.Run([sum] { sum->Decode(); });
  }

  bool IsWorthIt(const Shape& piece) const {
    const MatrixShape shape = AsMatrix(piece);
    return static_cast<double>((shape.rows + shape.cols) * options_.rank) * options_.min_compression_rate <
           static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
  }

  const PowerSgdOptions options_;
};

std::unique_ptr<Compressor> Make(const CommunicationMethod& method) {
  return std::make_unique<PowerSgd>(
      PowerSgdOptions{.rank = static_cast<int64_t>(method.Get("rank")),
                      .start_step = static_cast<uint64_t>(method.Get("start_step")),
                      .min_compression_rate = method.Get("min_compression_rate"),
                      .warm_start = method.GetFlag("warm_start"),
                      .error_feedback = method.GetFlag("error_feedback")});
}

using Type = MethodArgument::Type;

const RegisterCompressor kRegister({
    .name = "powersgd",
    .arguments =
        {
            {.name = "rank", .type = Type::kWholeNumber, .standard = 1, .least = 1, .most = 1024},
            {.name = "start_step", .type = Type::kWholeNumber, .most = kLargest},
            {.name = "min_compression_rate", .standard = 2, .most = kLargest, .excludes_least = true},
            {.name = "warm_start", .type = Type::kFlag, .standard = 1},
            ErrorFeedbackArgument(),
        },
    .make = Make,
});

}  // namespace
}  // namespace weft
