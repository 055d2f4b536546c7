// What elementwise CUDA kernels share, emulated: packs and single elements of operands that are broadcast,
// cut, unaligned or transposed, bit for bit beside the CPU's kernels; updates in place; sums of squares.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/elementwise/compare.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/magnitude.h"
#include "ops/elementwise/select.h"
#include "ops/elementwise/transcendental.h"
#include "ops/elementwise/triangle.h"
#include "ops/optimizer/optimizer_update.h"
#include "ops/reduce/reduce.h"
#include "tests/ops/cuda/both_devices.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

using AllocatorPtr = std::shared_ptr<Allocator>;

// Where an operand lies: in memory of `stored` extents, from `first` on along the last dim.
struct Place {
  Shape shape;
  int64_t first = 0;     // elements before each row
  int64_t gap = 0;       // elements behind each row
  bool swapped = false;  // the first and the last dim

  Tensor Make(const AllocatorPtr& allocator, DType dtype, double low, double high) const {
    Shape stored = shape;
    const int last = shape.ndim() - 1;
    if (last < 0) return PatternTensor(allocator, dtype, shape, low, high);
    if (swapped) std::swap(stored[0], stored[last]);
    const int64_t length = stored[last];
    stored[last] += first + gap;
    const Tensor row = PatternTensor(allocator, dtype, stored, low, high).Slice(last, first, length);
    return swapped ? row.Transpose(0, last) : row;
  }
};

struct BinaryCase {
  const char* name;
  Place a, b;
  Shape output;
};

std::vector<BinaryCase> BinaryCases() {
  return {
      {"contiguous", {{64, 16}}, {{64, 16}}, {64, 16}},
      {"uneven", {{5, 7}}, {{5, 7}}, {5, 7}},
      {"one pack and an element", {{17}}, {{17}}, {17}},
      {"scalar", {{41}}, {{}}, {41}},
      {"two scalars", {{}}, {{}}, {}},
      {"bias", {{9, 32}}, {{32}}, {9, 32}},
      {"uneven bias", {{9, 33}}, {{33}}, {9, 33}},
      {"column", {{9, 32}}, {{9, 1}}, {9, 32}},
      {"middle", {{3, 8, 16}}, {{8, 1}}, {3, 8, 16}},
      {"outer product", {{6, 1}}, {{1, 16}}, {6, 16}},
      {"rows with gaps", {{5, 16}, 0, 16}, {{5, 16}}, {5, 16}},
      {"rows with uneven gaps", {{5, 16}, 0, 3}, {{5, 16}}, {5, 16}},
      {"unaligned", {{64}, 1}, {{64}}, {64}},
      {"unaligned rows", {{4, 16}, 5, 11}, {{4, 16}}, {4, 16}},
      {"transposed", {{16, 32}, 0, 0, true}, {{16, 32}}, {16, 32}},
      {"empty", {{0, 4}}, {{4}}, {0, 4}},
  };
}

class MapElementsTest : public testing::Test {
 protected:
  void ExpectSameBytes(const BothDevices::Results& results, const std::string& what) {
    ASSERT_EQ(results.cpu.size(), results.cuda.size());
    for (size_t i = 0; i < results.cpu.size(); ++i) {
      EXPECT_EQ(ByteDifference(results.cuda[i], results.cpu[i]), "") << what << ", output " << i;
    }
  }

  BothDevices both_;
};

TEST_F(MapElementsTest, TakesOperandsAsTheyLie) {
  for (const BinaryCase& c : BinaryCases()) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32}) {
      for (const OpDef* op : {static_cast<const OpDef*>(&kSub), static_cast<const OpDef*>(&kLess),
                              static_cast<const OpDef*>(&kMaximum)}) {
        const auto operands = [&](const AllocatorPtr& allocator) -> std::vector<Tensor> {
          return {c.a.Make(allocator, dtype, -100, 100), c.b.Make(allocator, dtype, -90, 120)};
        };
        ExpectSameBytes(both_.Run(*op, operands, c.output),
                        absl::StrCat(op->name(), " ", DTypeName(dtype), " ", c.name));
      }
    }
  }
}

// Operands of different sizes, and bools.
TEST_F(MapElementsTest, WhereTakesEveryDType) {
  for (const BinaryCase& c : BinaryCases()) {
    for (DType dtype : kAllDTypes) {
      const auto operands = [&](const AllocatorPtr& allocator) -> std::vector<Tensor> {
        // Truncated to integers, half of them 0.
        const Tensor pattern = PatternTensor(allocator, DType::kF32, c.output, 0, 2);
        const Tensor condition =
            CastTensor(CastTensor(pattern, DType::kI32, allocator), DType::kBool, allocator);
        return {condition, c.a.Make(allocator, dtype, 0, 100), c.b.Make(allocator, dtype, 0, 90)};
      };
      ExpectSameBytes(both_.Run(kWhere, operands, c.output),
                      absl::StrCat("where ", DTypeName(dtype), " ", c.name));
    }
  }
}

// Functions at and beyond the arguments where they saturate, and where they are not finite.
TEST_F(MapElementsTest, FunctionsAgreeAtTheirLimits) {
  std::vector<double> x = {0.0, -0.0, NAN};
  for (const double value :
       {1e-40, 0.3, 1.0, 5.0, 9.99, 10.01, 13.1, 13.3, 86.9, 87.1, 1e4, 1e30, double{INFINITY}}) {
    x.push_back(value);
    x.push_back(-value);
  }
  const Shape shape = {static_cast<int64_t>(x.size())};
  const NoScalars scalars;
  const auto compare = [&](const OpDef& op, const void* attributes, int num_operands) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      const auto operands = [&](const AllocatorPtr& allocator) {
        const Tensor values = Tensor::FromValues<double>(shape, x, allocator);
        std::vector<Piece> pieces = {{CastTensor(values, dtype, allocator), WholeBox(shape)}};
        if (num_operands == 2)
          pieces.push_back({PatternTensor(allocator, dtype, shape, 1, 2), WholeBox(shape)});
        return pieces;
      };
      const auto results = both_.Run(op, operands, {WholeBox(shape)}, attributes, &scalars);
      EXPECT_EQ(Difference(results.cuda[0], results.cpu[0], {.tolerance = Tolerance(dtype)}), "")
          << op.name() << " " << DTypeName(dtype);
    }
  };
  const NoAttributes none;
  const std::initializer_list<const OpDef*> unary = {&kNeg,   &kExp,      &kLog, &kSqrt, &kRsqrt,   &kTanh,
                                                     &kRelu,  &kSilu,     &kSin, &kCos,  &kSigmoid, &kErf,
                                                     &kIsNan, &kIsFinite, &kAbs, &kSign};
  for (const OpDef* op : unary) compare(*op, &none, 1);
  for (const OpDef* op :
       std::initializer_list<const OpDef*>{&kReluGrad, &kTanhGrad, &kSiluGrad, &kErfGrad, &kAbsGrad}) {
    compare(*op, &none, 2);
  }
  for (const bool exact : {false, true}) {
    const GeluAttributes attributes = {.exact = exact};
    compare(kGelu, &attributes, 1);
    compare(kGeluGrad, &attributes, 2);
  }
}

TEST_F(MapElementsTest, TriangleKnowsItsPlace) {
  const NoScalars scalars;
  const ShardBox boxes[] = {
      WholeBox({5, 7}),
      WholeBox({2, 16, 32}),
      WholeBox({9, 3}),
      {.global_shape = {3, 40, 40}, .offset = {1, 8, 16}, .shape = {2, 16, 16}},
      {.global_shape = {11, 13}, .offset = {3, 5}, .shape = {7, 5}},
      {.global_shape = {4, 4}, .offset = {4, 0}, .shape = {0, 4}},
  };
  for (const ShardBox& box : boxes) {
    for (const bool lower : {false, true}) {
      for (const int64_t diagonal : {int64_t{0}, int64_t{2}, int64_t{-3}, int64_t{1} << 62}) {
        for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kU8}) {
          const TriangleAttributes attributes = {.lower = lower, .diagonal = diagonal};
          const auto operands = [&](const AllocatorPtr& allocator) -> std::vector<Piece> {
            return {{PatternTensor(allocator, dtype, box.shape, 1, 100), box}};
          };
          const auto results = both_.Run(kTriangle, operands, {box}, &attributes, &scalars);
          ExpectSameBytes(results, absl::StrCat("triangle of ", box.shape.ToString(), " ", diagonal));
        }
      }
    }
  }
}

// Of parameters in one dtype and gradients in another.
class UpdateTest : public MapElementsTest {
 protected:
  // `num_state` tensors of state, from [0, 1).
  template <class Scalars>
  void Compare(const OpDef& op, int num_state, const Scalars& scalars, double clip) {
    const NoAttributes attributes;
    for (const int64_t n : {3, 64, 1003}) {
      for (const int64_t first : {0, 1}) {
        for (DType p : {DType::kF32, DType::kF64, DType::kBF16}) {
          for (DType g : {DType::kF32, DType::kBF16}) {
            const Place place = {{n}, first};
            const auto operands = [&](const AllocatorPtr& allocator) {
              std::vector<Tensor> tensors = {place.Make(allocator, p, -1, 1)};
              for (int i = 0; i < num_state; ++i) tensors.push_back(place.Make(allocator, p, 0, 1));
              tensors.push_back(place.Make(allocator, g, -2, 2));
              tensors.push_back(PatternTensor(allocator, DType::kF32, {}, clip, clip));
              const bool is_adamw = num_state == 2;
              if (is_adamw) tensors.push_back(PatternTensor(allocator, DType::kF64, {2}, 0.2, 0.7));
              std::vector<Piece> pieces;
              for (const Tensor& tensor : tensors) pieces.push_back({tensor, WholeBox(tensor.shape())});
              return pieces;
            };
            const std::vector<ShardBox> boxes(static_cast<size_t>(num_state + 1), WholeBox({n}));
            const auto results = both_.Run(op, operands, boxes, &attributes, &scalars);
            ExpectSameBytes(results, absl::StrCat(op.name(), " of ", n, " ", DTypeName(p), ", gradients ",
                                                  DTypeName(g), ", clip ", clip));
          }
        }
      }
    }
  }
};

TEST_F(UpdateTest, HasTheBitsOfTheCpu) {
  for (const double clip : {0.3, double{NAN}}) {
    Compare(kAdamWUpdate, 2, AdamWScalars{.lr = 0.1, .weight_decay = 0.07}, clip);
    Compare(kSgdUpdate, 0, SgdScalars{.lr = 0.1, .weight_decay = 0.07}, clip);
    Compare(kMomentumUpdate, 1, MomentumScalars{.lr = 0.1, .weight_decay = 0.07}, clip);
    Compare(kNesterovUpdate, 1, MomentumScalars{.lr = 0.1, .weight_decay = 0.07}, clip);
    Compare(kLionUpdate, 1, LionScalars{.lr = 0.1, .weight_decay = 0.07}, clip);
    Compare(kLerpUpdate, 0, NoScalars(), clip);
  }
}

TEST_F(UpdateTest, CountsAndRatesHaveTheBitsOfTheCpu) {
  const NoAttributes attributes;
  const NoScalars no_scalars;
  const AdamWRatesScalars scalars = {.lr = 0.03, .beta1 = 0.87, .beta2 = 0.9991};
  for (const int64_t t : {1, 2, 3, 77, 1000, 123456789}) {
    for (const double clip : {0.3, double{NAN}, double{INFINITY}}) {
      const auto operands = [&](const AllocatorPtr& allocator) -> std::vector<Piece> {
        return {{CloneTensor(Tensor::FromValues<int64_t>({}, {t}), allocator), WholeBox({})},
                {PatternTensor(allocator, DType::kF32, {}, clip, clip), WholeBox({})}};
      };
      const auto counts = both_.Run(kCountUpdate, operands, {WholeBox({})}, &attributes, &no_scalars);
      ExpectSameBytes(counts, absl::StrCat("count after ", t));
      EXPECT_EQ(counts.cpu[0].ToVector<int64_t>()[0], std::isfinite(clip) ? t + 1 : t);
    }
    const auto count = [&](const AllocatorPtr& allocator) -> std::vector<Piece> {
      return {{CloneTensor(Tensor::FromValues<int64_t>({}, {t}), allocator), WholeBox({})}};
    };
    ExpectSameBytes(both_.Run(kAdamWRates, count, {WholeBox({2})}, &attributes, &scalars),
                    absl::StrCat("rates of ", t));
  }
}

TEST_F(MapElementsTest, AccumulatesOtherDTypes) {
  for (DType acc : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (DType x : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      const auto operands = [&](const AllocatorPtr& allocator) -> std::vector<Tensor> {
        return {PatternTensor(allocator, acc, {131}, -3, 3), PatternTensor(allocator, x, {131}, -1, 1)};
      };
      ExpectSameBytes(both_.Run(kAccumulate, operands, {131}), absl::StrCat(DTypeName(acc), DTypeName(x)));
    }
  }
}

TEST_F(MapElementsTest, SumSquaresIsExactToTheResult) {
  for (const int64_t n : {0, 5, 8193}) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      const Tensor values = PatternTensor(MakeCpuAllocator(), dtype, {n}, -1, 1);
      std::vector<double> sums;
      // The same numbers aligned, and unaligned with a gap: the same bits.
      for (const int64_t first : {0, 1}) {
        if (first == 1 && n == 0) continue;
        const auto operands = [&](const AllocatorPtr& allocator) -> std::vector<Tensor> {
          const Tensor x = Place{{n}, first, first}.Make(allocator, dtype, 0, 0);
          CopyTensor(values, x);
          return {x};
        };
        sums.push_back(both_.Run(kSumSquares, operands, {}).cuda[0].ToVector<double>()[0]);
        EXPECT_EQ(sums.back(), sums.front()) << DTypeName(dtype) << " " << n;
      }
      double expected = 0;
      for (const double value : values.ToVector<double>()) expected += value * value;
      const double tolerance = dtype == DType::kF64 ? 1e-13 : 2e-7;
      EXPECT_NEAR(sums.front(), expected, tolerance * expected) << DTypeName(dtype) << " " << n;
    }
  }
}

}  // namespace
}  // namespace weft
