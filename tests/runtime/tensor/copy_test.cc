#include "runtime/tensor/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/tensor/transpose.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A view of `shape` inside a larger buffer, its dims in a random order there, with gaps around and between.
struct Placed {
  Tensor whole;  // row-major
  Tensor view;
};
Placed RandomlyPlaced(std::mt19937& random, DType dtype, const Shape& shape) {
  const int ndim = shape.ndim();
  std::vector<int> order(ndim);
  std::iota(order.begin(), order.end(), 0);
  if (random() % 4 != 0) std::shuffle(order.begin(), order.end(), random);
  Shape outer = shape;
  std::vector<int64_t> start(ndim);
  for (int i = 0; i < ndim; ++i) {
    start[i] = random() % 2 ? random() % 3 : 0;
    outer[i] = shape[order[i]] + start[i] + (random() % 2 ? random() % 3 : 0);
  }
  Placed placed;
  placed.whole = Tensor::Empty(MakeCpuAllocator(), dtype, outer);
  placed.view = placed.whole;
  std::vector<int> inverse(ndim);
  for (int i = 0; i < ndim; ++i) {
    placed.view = placed.view.Slice(i, start[i], shape[order[i]]);
    inverse[order[i]] = i;
  }
  placed.view = placed.view.Permute(inverse);
  return placed;
}

// Calls `body(tensor element pointer, row-major position)` by walking the strides, naively.
template <class T, class Body>
void ForEach(const Tensor& tensor, const Body& body) {
  const Shape& shape = tensor.shape();
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int dim = tensor.ndim() - 1; dim >= 0; --dim) {
      offset += rest % shape[dim] * tensor.strides()[dim];
      rest /= shape[dim];
    }
    body(tensor.data<T>()[offset], i);
  }
}

// The value that a dtype stores for a small `value`, by the language's own conversions.
double Stored(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      return value;
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kBF16:
      return static_cast<double>(BFloat16(static_cast<float>(value)));
    case DType::kF16:
      return static_cast<double>(Float16(static_cast<float>(value)));
    case DType::kI32:
    case DType::kI64:
      return std::trunc(value);
    case DType::kU8:
      return std::max(0.0, std::trunc(value));
    case DType::kBool:
      return value != 0;
  }
  return 0;
}

template <class T>
void FillWith(const Tensor& tensor, const std::function<double(int64_t)>& value_at) {
  ForEach<T>(tensor, [&](T& element, int64_t i) {
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      element = T(static_cast<float>(value_at(i)));
    } else {
      element = static_cast<T>(value_at(i));
    }
  });
}

Shape RandomShape(std::mt19937& random, int max_ndim, int64_t max_extent) {
  Shape shape;
  for (int ndim = static_cast<int>(random() % (max_ndim + 1)); shape.ndim() < ndim;) {
    shape.push_back(random() % (max_extent + 1));
  }
  return shape;
}

// Multiples of 1/4 in [0, 24): exact in every float dtype here, never beyond what u8 holds.
double SmallValue(int64_t i) { return static_cast<double>((i * 29 + 3) % 96) / 4; }

constexpr double kSentinel = 77;

// Copies one random pair and checks every byte of the target's buffer: what lies outside the view is
// untouched.
template <class From, class To>
void CheckCopy(std::mt19937& random, const Shape& shape) {
  const DType from_type = kDTypeOf<From>;
  const DType to_type = kDTypeOf<To>;
  const Placed from = RandomlyPlaced(random, from_type, shape);
  const Placed to = RandomlyPlaced(random, to_type, shape);
  FillWith<From>(from.view, SmallValue);
  FillWith<To>(to.whole, [](int64_t) { return kSentinel; });
  CopyTensor(from.view, to.view);
  ForEach<To>(to.view, [&](To& element, int64_t i) {
    ASSERT_EQ(static_cast<double>(element), Stored(to_type, Stored(from_type, SmallValue(i))))
        << from.view.TypeString() << from.view.strides() << " to " << to.view.TypeString()
        << to.view.strides();
    element = To(static_cast<float>(kSentinel));
  });
  for (double value : to.whole.ToVector<double>()) ASSERT_EQ(value, Stored(to_type, kSentinel));
}

TEST(CopyTensor, RandomStridesInEveryPairOfDtypes) {
  std::mt19937 random(1);
  for (DType from_type : kAllDTypes) {
    for (DType to_type : kAllDTypes) {
      VisitDType(from_type, [&](auto from_tag) {
        VisitDType(to_type, [&](auto to_tag) {
          for (int trial = 0; trial < 60; ++trial) {
            CheckCopy<typename decltype(from_tag)::type, typename decltype(to_tag)::type>(
                random, RandomShape(random, 4, 5));
          }
        });
      });
    }
  }
}

// Sizes around the tiles of the transposing path, for every size of element.
TEST(CopyTensor, Transposes) {
  std::mt19937 random(2);
  for (const Shape& shape :
       {Shape{1, 40}, {15, 17}, {16, 16}, {33, 64}, {65, 31}, {3, 64, 33}, {64, 3, 65}}) {
    for (DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
      VisitDType(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const Tensor from = Tensor::Empty(MakeCpuAllocator(), dtype, shape);
        FillWith<T>(from, SmallValue);
        const Tensor turned = from.Transpose(0, -1);
        const Tensor to = Tensor::Empty(MakeCpuAllocator(), dtype, turned.shape());
        CopyTensor(turned, to);
        ASSERT_EQ(to.ToVector<double>(), turned.ToVector<double>()) << from.TypeString();
        const Tensor back = Tensor::Empty(MakeCpuAllocator(), dtype, shape);
        CopyTensor(to, back.Transpose(0, -1));  // the target is what is transposed
        ASSERT_EQ(back.ToVector<double>(), turned.Transpose(0, -1).ToVector<double>());
        for (int trial = 0; trial < 5; ++trial) CheckCopy<T, T>(random, shape);
      });
    }
  }
}

TEST(CopyTensor, EightDims) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) CheckCopy<float, float>(random, {2, 1, 3, 2, 1, 2, 2, 3});
}

TEST(CopyTensor, ReadsExpandedSources) {
  const Tensor column = Tensor::FromValues<float>({3, 1}, {1, 2, 3});
  const Tensor to = Tensor::Empty(MakeCpuAllocator(), DType::kF32, {2, 3, 2});
  CopyTensor(column.Expand({2, 3, 2}), to);
  EXPECT_THAT(to.ToVector<float>(), ::testing::ElementsAre(1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3));
}

TEST(CopyTensor, OntoItselfChangesNothing) {
  const Tensor tensor = Tensor::FromValues<float>({2, 2}, {1, 2, 3, 4});
  CopyTensor(tensor.Transpose(0, 1), tensor.Transpose(0, 1));
  EXPECT_THAT(tensor.ToVector<float>(), ::testing::ElementsAre(1, 2, 3, 4));
}

// NaN payloads and signed zeros are bits to a copy.
TEST(CopyTensor, KeepsBitsOfEqualDtypes) {
  const float values[] = {std::bit_cast<float>(0x7fc12345u), -0.0f, std::bit_cast<float>(0x7f812345u), 1.0f};
  const Tensor from = Tensor::FromValues<float>({2, 2}, values);
  const Tensor to = CloneTensor(from.Transpose(0, 1), MakeCpuAllocator());
  EXPECT_TRUE(to.IsContiguous());
  const uint32_t* const bits = static_cast<const uint32_t*>(to.data());
  uint32_t copied[4];
  std::memcpy(copied, bits, sizeof(copied));
  EXPECT_THAT(copied, ::testing::ElementsAre(0x7fc12345u, 0x7f812345u, 0x80000000u, 0x3f800000u));
}

TEST(CopyTensor, NoOpOnMetaAndEmpty) {
  const auto meta = MakeMetaAllocator();
  const Tensor a = Tensor::Empty(meta, DType::kF32, {1 << 20, 1 << 20});
  const Tensor b = Tensor::Empty(meta, DType::kBF16, {1 << 20, 1 << 20});
  CopyTensor(a, b);
  FillTensor(a, 1);
  AccumulateTensor(a, a, ReduceOp::kSum);
  EXPECT_EQ(CastTensor(a, DType::kI64, meta).TypeString(), "i64[1048576, 1048576]");
  // From memory that has elements, too.
  const Tensor values = Tensor::FromValues<float>({2, 1}, {1, 2});
  EXPECT_EQ(CastTensor(values, DType::kBF16, meta).TypeString(), "bf16[2, 1]");
  CopyTensor(values, a.Slice(0, 0, 2).Slice(1, 0, 1));
  const Tensor empty = Tensor::Empty(MakeCpuAllocator(), DType::kF32, {2, 0});
  CopyTensor(empty, empty.Slice(0, 0, 2));
  FillTensor(empty, 1);
  AccumulateTensor(empty, empty, ReduceOp::kMax);
}

TEST(CopyTensor, MisuseNamesBothTensors) {
  const auto allocator = MakeCpuAllocator();
  const Tensor a = Tensor::Empty(allocator, DType::kF32, {2, 3});
  const Tensor b = Tensor::Empty(allocator, DType::kBF16, {3, 2});
  EXPECT_EQ(MessageOf([&] { CopyTensor(a, b); }), "CopyTensor: shapes differ: from f32[2, 3] to bf16[3, 2]");
  EXPECT_EQ(MessageOf([&] { AccumulateTensor(a, b.Transpose(0, 1), ReduceOp::kSum); }),
            "AccumulateTensor: dtypes differ: from f32[2, 3] to bf16[2, 3]");
  const Tensor meta = Tensor::Empty(MakeMetaAllocator(), DType::kF32, {2, 3});
  EXPECT_THAT(MessageOf([&] { CopyTensor(meta, a); }),
              AllOf(HasSubstr("devices differ"), HasSubstr("on meta"), HasSubstr("on cpu")));
  EXPECT_THAT(MessageOf([&] {
                CopyTensor(a, a.Slice(0, 0, 1).Expand({2, 3}));
              }),
              HasSubstr("repeats its elements along dim 0"));
}

TEST(FillTensor, FillsTheViewAlone) {
  std::mt19937 random(4);
  for (DType dtype : kAllDTypes) {
    VisitDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int trial = 0; trial < 50; ++trial) {
        const Placed placed = RandomlyPlaced(random, dtype, RandomShape(random, 4, 5));
        FillWith<T>(placed.whole, [](int64_t) { return 0.0; });
        FillTensor(placed.view, 2.75);
        int64_t filled = 0;
        for (double value : placed.whole.template ToVector<double>()) filled += value != 0;
        ASSERT_EQ(filled, placed.view.num_elements());
        for (double value : placed.view.template ToVector<double>()) ASSERT_EQ(value, Stored(dtype, 2.75));
      }
    });
  }
}

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

TEST(AccumulateTensor, EveryOpAndDtypeOnRandomStrides) {
  std::mt19937 random(5);
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      VisitDType(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (int trial = 0; trial < 40; ++trial) {
          const Shape shape = RandomShape(random, 4, 6);
          const Placed from = RandomlyPlaced(random, dtype, shape);
          const Placed to = RandomlyPlaced(random, dtype, shape);
          // Products stay below 64, so every dtype holds them; rounding is checked apart.
          const auto value_at = [](int64_t i) { return static_cast<double>((i * 5 + 1) % 8); };
          FillWith<T>(from.view, [&](int64_t i) { return value_at(i + 3); });
          FillWith<T>(to.whole, [](int64_t) { return kSentinel; });
          FillWith<T>(to.view, value_at);
          AccumulateTensor(from.view, to.view, op);
          ForEach<T>(to.view, [&](T& element, int64_t i) {
            const double a = Stored(dtype, value_at(i));
            const double b = Stored(dtype, value_at(i + 3));
            ASSERT_EQ(static_cast<double>(element), Stored(dtype, Combine(op, a, b))) << dtype << " " << op;
            element = T(static_cast<float>(kSentinel));
          });
          for (double value : to.whole.template ToVector<double>())
            ASSERT_EQ(value, Stored(dtype, kSentinel));
        }
      });
    }
  }
}

TEST(AccumulateTensor, RoundsHalvesOnce) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<BFloat16> a(1000);
  std::vector<BFloat16> b(1000);
  for (int i = 0; i < 1000; ++i) {
    a[i] = BFloat16(normal(random));
    b[i] = BFloat16(100 * normal(random));
  }
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
    const Tensor to = Tensor::FromValues<BFloat16>({1000}, a);
    AccumulateTensor(Tensor::FromValues<BFloat16>({1000}, b), to, op);
    for (int i = 0; i < 1000; ++i) {
      const double exact = Combine(op, static_cast<double>(a[i]), static_cast<double>(b[i]));
      ASSERT_EQ(to.data<BFloat16>()[i].bits(), BFloat16(static_cast<float>(exact)).bits());
    }
  }
}

TEST(AccumulateTensor, NanWinsInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      const auto make = [&](std::vector<float> values) {
        return CastTensor(Tensor::FromValues<float>({4}, values), dtype, MakeCpuAllocator());
      };
      const Tensor to = make({nan, 1, nan, 2});
      AccumulateTensor(make({1, nan, nan, 2}), to, op);
      const std::vector<float> values = to.ToVector<float>();
      EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[1]) && std::isnan(values[2]));
      EXPECT_EQ(values[3], 2);
    }
  }
}

TEST(AccumulateTensor, IntegersWrap) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  const Tensor to = Tensor::FromValues<int32_t>({2}, {kMax, -5});
  AccumulateTensor(Tensor::FromValues<int32_t>({2}, {1, -6}), to, ReduceOp::kSum);
  EXPECT_THAT(to.ToVector<int32_t>(), ::testing::ElementsAre(std::numeric_limits<int32_t>::min(), -11));
  const Tensor bytes = Tensor::FromValues<uint8_t>({1}, {250});
  AccumulateTensor(bytes, bytes, ReduceOp::kSum);
  EXPECT_THAT(bytes.ToVector<uint8_t>(), ::testing::ElementsAre(244));
}

TEST(CastTensor, GivesARowMajorCopy) {
  const Tensor from = Tensor::FromValues<double>({2, 2}, {1.5, -2.5, 0.0, 1e9}).Transpose(0, 1);
  const auto allocator = MakeCpuAllocator();
  const Tensor cast = CastTensor(from, DType::kI32, allocator);
  EXPECT_TRUE(cast.IsContiguous());
  EXPECT_EQ(cast.buffer()->allocator(), allocator);
  EXPECT_THAT(cast.ToVector<int32_t>(), ::testing::ElementsAre(1, 0, -2, 1'000'000'000));
}

// The columns of a [columns, rows] array as rows, `gap` words apart beyond their own.
template <class Word>
void CheckTranspose(int64_t rows, int64_t columns, int64_t gap) {
  const int64_t from_column = rows + gap, to_row = columns + gap;
  std::vector<Word> from(columns * from_column), to(rows * to_row + 1, 77);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<Word>(i * 2654435761u >> 3);
  TransposeWords(from.data(), from_column, to.data(), to_row, rows, columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < to_row; ++j) {
      const Word expected = j < columns ? from[j * from_column + i] : 77;
      ASSERT_EQ(to[i * to_row + j], expected)
          << sizeof(Word) << ": " << rows << " x " << columns << ", " << gap;
    }
  }
  ASSERT_EQ(to.back(), 77);
}

template <class Word>
void CheckTransposes() {
  for (const int64_t gap : {0, 1, 64}) {
    for (const int64_t rows : {0, 1, 5, 64, 67, 300}) {
      for (const int64_t columns : {0, 1, 8, 16, 65, 131}) CheckTranspose<Word>(rows, columns, gap);
    }
  }
  // Far enough apart that lines are streamed past the caches; an odd gap keeps them from it.
  for (const int64_t gap : {int64_t{1} << 16, (int64_t{1} << 16) + 1}) CheckTranspose<Word>(130, 70, gap);
}

TEST(Transpose, EveryWordSizeAndRim) {
  CheckTransposes<uint8_t>();
  CheckTransposes<uint16_t>();
  CheckTransposes<uint32_t>();
  CheckTransposes<uint64_t>();
}

}  // namespace
}  // namespace weft
