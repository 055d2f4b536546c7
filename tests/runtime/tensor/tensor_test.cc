#include "runtime/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 0, 1, 2, ...: the value of an element is its offset in the buffer.
Tensor Iota(const Shape& shape) {
  std::vector<int64_t> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromValues<int64_t>(shape, values);
}

// A tensor as a dense table, with views made by copying: the oracle.
struct Table {
  Shape shape;
  std::vector<int64_t> values;

  int64_t At(const Shape& index) const {
    int64_t position = 0;
    for (int dim = 0; dim < shape.ndim(); ++dim) position = position * shape[dim] + index[dim];
    return values[position];
  }

  // The table of `result_shape` whose element at `index` is ours at `source(index)`.
  Table Pick(const Shape& result_shape, const std::function<Shape(const Shape&)>& source) const {
    Table result = {result_shape, {}};
    for (int64_t i = 0; i < result_shape.num_elements(); ++i) {
      Shape index = result_shape;
      int64_t rest = i;
      for (int dim = result_shape.ndim() - 1; dim >= 0; --dim) {
        index[dim] = rest % result_shape[dim];
        rest /= result_shape[dim];
      }
      result.values.push_back(At(source(index)));
    }
    return result;
  }
};

void ExpectSame(const Table& expected, const Tensor& tensor) {
  ASSERT_EQ(tensor.shape(), expected.shape);
  ASSERT_EQ(tensor.ToVector<int64_t>(), expected.values);
}

// One random view of both.
void ApplyRandomView(std::mt19937& random, Tensor& tensor, Table& table) {
  const Shape shape = table.shape;
  const int ndim = shape.ndim();
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const int dim = ndim == 0 ? 0 : static_cast<int>(below(ndim));
  switch (below(5)) {
    case 0: {
      if (ndim == 0) return;
      const int64_t start = below(shape[dim] + 1);
      const int64_t length = below(shape[dim] - start + 1);
      Shape result = shape;
      result[dim] = length;
      table = table.Pick(result, [&](Shape index) {
        index[dim] += start;
        return index;
      });
      tensor = tensor.Slice(below(2) ? dim : dim - ndim, start, length);
      return;
    }
    case 1: {
      if (ndim == 0 || shape[dim] == 0) return;
      const int64_t at = below(shape[dim]);
      Shape result = shape;
      result.Remove(dim);
      table = table.Pick(result, [&](Shape index) {
        index.Insert(dim, at);
        return index;
      });
      tensor = tensor.Select(dim, at);
      return;
    }
    case 2: {
      std::vector<int> order(ndim);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Shape result;
      for (int source : order) result.push_back(shape[source]);
      table = table.Pick(result, [&](const Shape& index) {
        Shape source = index;
        for (int i = 0; i < ndim; ++i) source[order[i]] = index[i];
        return source;
      });
      tensor = tensor.Permute(order);
      return;
    }
    case 3: {
      if (ndim == 0) return;
      const int other = static_cast<int>(below(ndim));
      Shape result = shape;
      std::swap(result[dim], result[other]);
      table = table.Pick(result, [&](Shape index) {
        std::swap(index[dim], index[other]);
        return index;
      });
      tensor = tensor.Transpose(dim, other - ndim);
      return;
    }
    default: {
      Shape result = shape;
      for (int i = 0; i < ndim; ++i) {
        if (shape[i] == 1) result[i] = 1 + below(3);
      }
      const bool leads = ndim < 4 && below(2);
      if (leads) result.Insert(0, 1 + below(2));
      table = table.Pick(result, [&](Shape index) {
        if (leads) index.Remove(0);
        for (int i = 0; i < ndim; ++i) index[i] = shape[i] == 1 ? 0 : index[i];
        return index;
      });
      tensor = tensor.Expand(result);
    }
  }
}

Shape RandomShape(std::mt19937& random) {
  Shape shape;
  for (int ndim = static_cast<int>(random() % 5); shape.ndim() < ndim;) shape.push_back(1 + random() % 4);
  return shape;
}

// By brute force: the view reads as `target` without a copy if some strides give every element's place.
std::optional<Shape> StridesFor(const std::vector<int64_t>& places, const Shape& target) {
  Shape strides = target;
  const Shape dense = ContiguousStrides(target);
  for (int dim = 0; dim < target.ndim(); ++dim) {
    strides[dim] = target[dim] > 1 ? places[dense[dim]] - places[0] : 1;
  }
  for (int64_t i = 0; i < target.num_elements(); ++i) {
    int64_t place = places[0];
    for (int dim = 0; dim < target.ndim(); ++dim) place += i / dense[dim] % target[dim] * strides[dim];
    if (place != places[i]) return std::nullopt;
  }
  return strides;
}

// Every way to write `count` as a product of at most four extents, and some with ones.
std::vector<Shape> Factorisations(int64_t count) {
  std::vector<Shape> shapes;
  for (int64_t a = 1; a <= count; ++a) {
    if (count % a != 0) continue;
    for (int64_t b = 1; b <= count / a; ++b) {
      if (count / a % b != 0) continue;
      shapes.push_back({a, b, count / a / b});
      shapes.push_back({1, a, 1, b, count / a / b, 1});
    }
  }
  shapes.push_back({count});
  return shapes;
}

TEST(Tensor, RandomViewsEqualANaiveTable) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const Shape shape = RandomShape(random);
    Tensor tensor = Iota(shape);
    Table table = {shape, tensor.ToVector<int64_t>()};
    for (int step = 0; step < 5; ++step) {
      ApplyRandomView(random, tensor, table);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(table, tensor));
      if (table.values.empty()) continue;
      ASSERT_EQ(*tensor.data<int64_t>(), table.values[0]);
      // Contiguous means: each element follows the one before it.
      bool follows = true;
      for (size_t i = 1; i < table.values.size(); ++i) follows &= table.values[i] == table.values[i - 1] + 1;
      ASSERT_EQ(tensor.IsContiguous(), follows);
    }
  }
}

TEST(Tensor, ReshapesExactlyWhereStridesExist) {
  std::mt19937 random(2);
  int possible = 0;
  int impossible = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const Shape shape = RandomShape(random);
    Tensor tensor = Iota(shape);
    Table table = {shape, tensor.ToVector<int64_t>()};
    for (int step = 0; step < 2; ++step) ApplyRandomView(random, tensor, table);
    if (table.values.empty()) continue;
    for (const Shape& target : Factorisations(static_cast<int64_t>(table.values.size()))) {
      const bool expected = StridesFor(table.values, target).has_value();
      ASSERT_EQ(tensor.CanReshape(target), expected)
          << tensor.TypeString() << " strides " << tensor.strides() << " to " << target;
      ++(expected ? possible : impossible);
      if (!expected) {
        ASSERT_THAT(MessageOf([&] { tensor.Reshape(target); }), HasSubstr("without a copy"));
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSame({target, table.values}, tensor.Reshape(target)));
    }
  }
  EXPECT_GT(possible, 1000);
  EXPECT_GT(impossible, 1000);
}

TEST(Tensor, EmptyTensorsSliceReshapeAndPermute) {
  const Tensor tensor = Iota({3, 0, 2});
  EXPECT_EQ(tensor.num_elements(), 0);
  EXPECT_EQ(tensor.num_bytes(), 0);
  EXPECT_TRUE(tensor.IsContiguous());
  EXPECT_NE(tensor.data(), nullptr);
  EXPECT_EQ(tensor.Slice(0, 1, 2).shape(), Shape({2, 0, 2}));
  EXPECT_EQ(tensor.Slice(1, 0, 0).shape(), Shape({3, 0, 2}));
  EXPECT_EQ(tensor.Select(0, 2).shape(), Shape({0, 2}));
  EXPECT_EQ(tensor.Permute({2, 0, 1}).shape(), Shape({2, 3, 0}));
  EXPECT_EQ(tensor.Permute({2, 0, 1}).Reshape({0, 7}).strides(), Shape({7, 1}));
  EXPECT_EQ(tensor.ToVector<float>(), std::vector<float>());
  // An empty slice at the very end of a tensor that is not empty.
  EXPECT_EQ(Iota({4}).Slice(0, 4, 0).ToVector<int64_t>(), std::vector<int64_t>());
  EXPECT_EQ(Iota({1, 0}).Expand({5, 0}).shape(), Shape({5, 0}));
}

TEST(Tensor, ScalarHasOneElement) {
  const Tensor scalar = Tensor::FromValues<float>({}, {2.5f});
  EXPECT_EQ(scalar.ndim(), 0);
  EXPECT_EQ(scalar.ToVector<float>(), std::vector<float>{2.5f});
  EXPECT_EQ(scalar.Reshape({1, 1}).shape(), Shape({1, 1}));
  EXPECT_EQ(scalar.Expand({2, 2}).ToVector<double>(), std::vector<double>(4, 2.5));
  EXPECT_EQ(scalar.TypeString(), "f32[]");
}

TEST(Tensor, ViewsShareOneBuffer) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  Tensor tensor = Tensor::FromValues<int32_t>({2, 3}, {1, 2, 3, 4, 5, 6}, allocator);
  const Tensor row = tensor.Select(0, 1);
  EXPECT_EQ(row.buffer(), tensor.buffer());
  row.data<int32_t>()[0] = 40;
  EXPECT_THAT(tensor.ToVector<int32_t>(), ElementsAre(1, 2, 3, 40, 5, 6));
  tensor = Tensor();
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(allocator->stats().live_bytes, 64);
  EXPECT_THAT(row.ToVector<int32_t>(), ElementsAre(40, 5, 6));
}

TEST(Tensor, EveryDtypeKeepsItsValues) {
  for (DType dtype : kAllDTypes) {
    VisitDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T values[] = {T(0), T(1), T(1), T(0), T(1), T(0)};
      const Tensor tensor = Tensor::FromValues<T>({2, 3}, values);
      EXPECT_EQ(tensor.dtype(), dtype);
      EXPECT_EQ(tensor.num_bytes(), 6 * ItemSize(dtype));
      EXPECT_THAT(tensor.Transpose(0, 1).template ToVector<double>(), ElementsAre(0, 0, 1, 1, 1, 0));
      EXPECT_EQ(tensor.TypeString(), absl::StrCat(DTypeName(dtype), "[2, 3]"));
    });
  }
}

TEST(Tensor, ToVectorConverts) {
  const Tensor tensor = Tensor::FromValues<float>({3}, {-1.5f, 0.0f, 300.25f});
  EXPECT_THAT(tensor.ToVector<int32_t>(), ElementsAre(-1, 0, 300));
  EXPECT_THAT(tensor.ToVector<uint8_t>(), ElementsAre(0, 0, 255));
  EXPECT_THAT(tensor.ToVector<bool>(), ElementsAre(true, false, true));
}

TEST(Tensor, MetaHasAShapeAndNoBytes) {
  const std::shared_ptr<Allocator> meta = MakeMetaAllocator();
  const Tensor tensor = Tensor::Empty(meta, DType::kBF16, {1 << 20, 1 << 20, 4});
  EXPECT_EQ(meta->stats().live_bytes, int64_t{8} << 40);
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(tensor.Slice(0, 5, 3).data(), nullptr);
  EXPECT_EQ(tensor.Slice(0, 5, 3).Reshape({3 << 22}).shape(), Shape({3 << 22}));
  EXPECT_EQ(tensor.device().type, DeviceType::kMeta);
  EXPECT_THAT(MessageOf([&] { tensor.ToVector<float>(); }), HasSubstr("on meta"));
}

TEST(Tensor, MisuseNamesTheTensor) {
  const auto allocator = MakeCpuAllocator();
  EXPECT_THAT(MessageOf([&] {
                Tensor::Empty(allocator, DType::kF32, {2, -1});
              }),
              HasSubstr("negative extent in f32[2, -1]"));
  EXPECT_THAT(MessageOf([&] {
                Tensor::Empty(MakeMetaAllocator(), DType::kF64, {1LL << 32, 1LL << 31});
              }),
              HasSubstr("larger than 2^63 bytes"));
  EXPECT_THAT(MessageOf([] { Tensor::FromValues<float>({2}, {1.0f}); }),
              HasSubstr("f32[2] has 2 elements, got 1 values"));
  EXPECT_THAT(MessageOf([] { Tensor::FromValues<float>({1}, {1.0f}, MakeMetaAllocator()); }),
              HasSubstr("a meta tensor holds no values"));
  const Tensor tensor = Tensor::Empty(allocator, DType::kF32, {2, 3});
  const auto in_type = HasSubstr("f32[2, 3]");
  EXPECT_THAT(MessageOf([&] { tensor.Slice(2, 0, 1); }), HasSubstr("Slice: dim 2 is out of range"));
  for (auto [start, length] : {std::pair<int64_t, int64_t>{0, 4}, {-1, 1}, {4, 0}, {0, -1}, {2, INT64_MAX}}) {
    EXPECT_THAT(MessageOf([&] { tensor.Slice(1, start, length); }), AllOf(HasSubstr("do not lie"), in_type));
  }
  for (int64_t index : {-1, 3}) {
    EXPECT_THAT(MessageOf([&] { tensor.Select(1, index); }),
                AllOf(HasSubstr("out of range for dim 1"), in_type));
  }
  EXPECT_THAT(MessageOf([&] { tensor.Permute({0}); }), AllOf(HasSubstr("expected 2 dims"), in_type));
  EXPECT_THAT(MessageOf([&] { tensor.Permute({1, -1}); }), AllOf(HasSubstr("dim 1"), HasSubstr("twice")));
  EXPECT_THAT(MessageOf([&] { tensor.Transpose(0, 2); }), HasSubstr("Transpose: dim 2"));
  EXPECT_THAT(MessageOf([&] { tensor.Expand({3}); }), HasSubstr("more dims than [3]"));
  EXPECT_THAT(MessageOf([&] {
                tensor.Expand({4, 2, 5});
              }),
              AllOf(HasSubstr("dim 1 of f32[2, 3]"), HasSubstr("5")));
  EXPECT_THAT(MessageOf([&] { tensor.Expand({-4, 2, 3}); }), HasSubstr("negative extent"));
  EXPECT_THAT(MessageOf([&] { tensor.Reshape({4}); }), AllOf(in_type, HasSubstr("6 elements, [4] has 4")));
  EXPECT_THAT(MessageOf([&] { tensor.Reshape({-2, -3}); }), HasSubstr("negative extent"));
  EXPECT_FALSE(tensor.CanReshape({-2, -3}));
  EXPECT_THAT(MessageOf([&] { tensor.data<double>(); }), HasSubstr("tensor is f32, read as f64"));
}

}  // namespace
}  // namespace weft
