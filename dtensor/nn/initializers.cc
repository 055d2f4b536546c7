#include "dtensor/nn/initializers.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "mesh/shard_math.h"
#include "runtime/base/philox.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// On meta there are no elements to make.
bool IsOnMeta(const FirstValue& value) {
  return value.context->allocator()->device().type == DeviceType::kMeta;
}

// This rank's piece, whose elements are not written yet.
DTensor EmptyPiece(const FirstValue& value) {
  WEFT_REQUIRE(!value.layout.HasPartial(), "'", value.path, "': a first value cannot be Partial");
  MeshContext& context = *value.context;
  const Shape& shape = value.type.shape;
  const ShardBox box = LocalBox(shape, value.layout, context.mesh(), context.coordinate());
  const Tensor piece = Tensor::Empty(context.allocator(), value.type.dtype, box.shape);
  return DTensor::FromLocal(value.context, piece, value.layout, shape);
}

// This rank's piece of what is made element by element, on the host: `element` gets the global index.
DTensor MakeOnHost(const FirstValue& value,
                   absl::FunctionRef<double(absl::Span<const int64_t> index)> element) {
  DTensor made = EmptyPiece(value);
  if (IsOnMeta(value)) return made;
  const ShardBox box = made.LocalBox();
  const int64_t count = box.shape.num_elements();
  std::vector<double> elements(count);
  std::vector<int64_t> index(box.offset.begin(), box.offset.end());
  for (int64_t i = 0; i < count; ++i) {
    elements[i] = element(index);
    for (int dim = made.ndim() - 1; dim >= 0; --dim) {
      if (++index[dim] < box.offset[dim] + box.shape[dim]) break;
      index[dim] = box.offset[dim];
    }
  }
  CopyTensor(Tensor::FromValues<double>(box.shape, elements), made.ToLocal());
  return made;
}

uint64_t RowMajor(const Shape& shape, absl::Span<const int64_t> index) {
  uint64_t flat = 0;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    flat = flat * static_cast<uint64_t>(shape[dim]) + static_cast<uint64_t>(index[dim]);
  }
  return flat;
}

Fans FansOf(const FirstValue& value) {
  if (value.fans) return *value.fans;
  const Shape& shape = value.type.shape;
  WEFT_REQUIRE(shape.ndim() == 2, "'", value.path, "' ", shape.ToString(),
               ": an initializer that is scaled by fans wants dims [in, out], or ParameterSpec::fans");
  return {.in = shape[0], .out = shape[1]};
}

enum class Fan : uint8_t { kIn, kOut, kMean };

// Of a deviation gain / sqrt(fan).
class Scaled final : public FirstValueMaker {
 public:
  Scaled(double gain, Fan fan, bool is_uniform) : gain_(gain), fan_(fan), is_uniform_(is_uniform) {}

  DTensor Make(const FirstValue& value) const override {
    const Fans fans = FansOf(value);
    const double fan = fan_ == Fan::kIn    ? static_cast<double>(fans.in)
                       : fan_ == Fan::kOut ? static_cast<double>(fans.out)
                                           : static_cast<double>(fans.in + fans.out) / 2;
    const double deviation = gain_ / std::sqrt(std::max(1.0, fan));
    const double bound = std::sqrt(3.0) * deviation;
    return MakeFirstValue(
        is_uniform_ ? Initializer::Uniform(-bound, bound) : Initializer::Normal(0, deviation), value);
  }

 private:
  const double gain_;
  const Fan fan_;
  const bool is_uniform_;
};

Initializer MakeScaled(absl::string_view name, double gain, Fan fan, bool is_uniform) {
  WEFT_REQUIRE(gain >= 0 && std::isfinite(gain), name, ": expected a gain of at least 0, got ", gain);
  return Initializer::Made(std::make_shared<Scaled>(gain, fan, is_uniform));
}

Initializer MakeKaiming(absl::string_view name, const KaimingOptions& options, bool is_uniform) {
  WEFT_REQUIRE(std::isfinite(options.negative_slope), name, ": expected a finite negative_slope, got ",
               options.negative_slope);
  const double gain = std::sqrt(2 / (1 + options.negative_slope * options.negative_slope));
  return MakeScaled(name, gain, options.fan_out ? Fan::kOut : Fan::kIn, is_uniform);
}

// Of the normal distribution below `x`.
double NormalBelow(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

// A normal number is the quantile at its word's cell of 2^32; words within bounds make one within bounds.
class Truncated final : public FirstValueMaker {
 public:
  explicit Truncated(const TruncatedNormalOptions& options)
      : options_(options),
        first_(WordBelow((options.low - options.mean) / options.stddev)),
        count_(WordBelow((options.high - options.mean) / options.stddev) - first_) {
    WEFT_REQUIRE(count_ > 0, "TruncatedNormal: none of the distribution lies between ", options.low, " and ",
                 options.high);
  }

  DTensor Make(const FirstValue& value) const override {
    return MakeOnHost(value, [&](absl::Span<const int64_t> index) {
      const uint64_t flat = RowMajor(value.type.shape, index);
      const uint64_t word = RandomWords(value.key, flat / 4)[flat % 4];
      const float normal = NormalFromWord(static_cast<uint32_t>(first_ + (word * count_ >> 32)));
      return std::clamp(options_.mean + options_.stddev * normal, options_.low, options_.high);
    });
  }

 private:
  static uint64_t WordBelow(double x) { return static_cast<uint64_t>(std::llround(NormalBelow(x) * 0x1p32)); }

  const TruncatedNormalOptions options_;
  const uint64_t first_;
  const uint64_t count_;
};

class OfFunction final : public FirstValueMaker {
 public:
  explicit OfFunction(std::function<double(absl::Span<const int64_t>)> function)
      : function_(std::move(function)) {}

  DTensor Make(const FirstValue& value) const override { return MakeOnHost(value, function_); }

 private:
  const std::function<double(absl::Span<const int64_t>)> function_;
};

double Dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Makes the rows of `a` [rows, columns], rows <= columns, orthonormal, each by what it adds to those before it: Gram and
// Schmidt's way, which makes R's diagonal positive. Twice, since once leaves errors that grow with the condition.
void Orthonormalize(int64_t rows, int64_t columns, std::vector<double>* a) {
  for (int64_t row = 0; row < rows; ++row) {
    double* const mine = a->data() + row * columns;
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (int64_t other = 0; other < row; ++other) {
        const double* const before = a->data() + other * columns;
        const double along = Dot(mine, before, columns);
        for (int64_t i = 0; i < columns; ++i) mine[i] -= along * before[i];
      }
    }
    const double norm = std::sqrt(Dot(mine, mine, columns));
    for (int64_t i = 0; i < columns; ++i) mine[i] /= norm;
  }
}

class OrthogonalMatrix final : public FirstValueMaker {
 public:
  explicit OrthogonalMatrix(const OrthogonalOptions& options) : options_(options) {}

  DTensor Make(const FirstValue& value) const override {
    const Shape& shape = value.type.shape;
    WEFT_REQUIRE(shape.ndim() > options_.row_dims, "'", value.path, "' ", shape.ToString(),
                 ": an orthogonal value with ", options_.row_dims, " dims as rows wants more dims");
    if (IsOnMeta(value)) return EmptyPiece(value);
    int64_t rows = 1, columns = 1;
    for (int dim = 0; dim < shape.ndim(); ++dim) (dim < options_.row_dims ? rows : columns) *= shape[dim];
    // The lesser number as vectors: [vectors, length].
    const bool by_rows = rows <= columns;
    const int64_t vectors = std::min(rows, columns), length = std::max(rows, columns);
    std::vector<double> q(vectors * length);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        q[by_rows ? row * length + column : column * length + row] =
            NormalAt(value.key, static_cast<uint64_t>(row * columns + column));
      }
    }
    Orthonormalize(vectors, length, &q);
    return MakeOnHost(value, [&](absl::Span<const int64_t> index) {
      const auto flat = static_cast<int64_t>(RowMajor(shape, index));
      const int64_t row = flat / columns, column = flat % columns;
      return options_.gain * q[by_rows ? row * length + column : column * length + row];
    });
  }

 private:
  const OrthogonalOptions options_;
};

}  // namespace

Initializer XavierUniform(double gain) { return MakeScaled("XavierUniform", gain, Fan::kMean, true); }
Initializer XavierNormal(double gain) { return MakeScaled("XavierNormal", gain, Fan::kMean, false); }

Initializer KaimingUniform(const KaimingOptions& options) {
  return MakeKaiming("KaimingUniform", options, true);
}
Initializer KaimingNormal(const KaimingOptions& options) {
  return MakeKaiming("KaimingNormal", options, false);
}

Initializer TruncatedNormal(const TruncatedNormalOptions& options) {
  WEFT_REQUIRE(options.stddev > 0, "TruncatedNormal: expected a deviation above 0, got ", options.stddev);
  WEFT_REQUIRE(std::isfinite(options.mean), "TruncatedNormal: expected a finite mean, got ", options.mean);
  WEFT_REQUIRE(options.low < options.high, "TruncatedNormal: expected low below high, got ", options.low,
               " and ", options.high);
  return Initializer::Made(std::make_shared<Truncated>(options));
}

Initializer Orthogonal(const OrthogonalOptions& options) {
  WEFT_REQUIRE(options.row_dims >= 1, "Orthogonal: expected at least one dim of rows, got ",
               options.row_dims);
  WEFT_REQUIRE(std::isfinite(options.gain), "Orthogonal: expected a finite gain, got ", options.gain);
  return Initializer::Made(std::make_shared<OrthogonalMatrix>(options));
}

Initializer FromFunction(std::function<double(absl::Span<const int64_t> index)> function) {
  WEFT_REQUIRE(function != nullptr, "FromFunction: expected a function, got an empty one");
  return Initializer::Made(std::make_shared<OfFunction>(std::move(function)));
}

}  // namespace weft
