// Results whose extent depends on values: masks, places that are not 0, distinct values. The same on every
// layout, uneven and empty pieces among them, against loops.

#include "dtensor/functions/selection.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

// A mesh and a layout of two dims: whole, uneven, with empty pieces, nested, Partial.
struct Place {
  const char* mesh;
  const char* layout;
};
const Place kPlaces[] = {{"", "[-, -]"},         {"a=2", "[a, -]"},         {"a=2", "[-, a]"},
                         {"a=3", "[a, -]"},      {"a=2,b=2", "[a, b]"},     {"a=2,b=2", "[b.a, -]"},
                         {"a=2", "[-, -] P{a}"}, {"a=2,b=2", "[a, -] P{b}"}};

const Shape kShapes[] = {{5, 3}, {2, 4}, {1, 1}, {0, 3}, {3, 0}};

// 0, 1 and 2, without an order.
std::vector<double> SmallNumbers(const Shape& shape) {
  std::vector<double> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * i + i / 2) % 3);
  return values;
}

void OnEveryPlace(const std::function<void(const Context&, const Shape&, const char* layout)>& body) {
  for (const Place& place : kPlaces) {
    OnMesh(place.mesh, [&](const Context& context) {
      for (const Shape& shape : kShapes) body(context, shape, place.layout);
    });
  }
}

std::vector<double> Filled(std::vector<double> values, int64_t capacity, double fill) {
  values.resize(capacity, fill);
  return values;
}

std::vector<double> ValuesOf(const DTensor& x) { return x.FullTensor().ToVector<double>(); }

TEST(SelectionTest, MaskedSelectTakesInOrder) {
  OnEveryPlace([](const Context& context, const Shape& shape, const char* layout) {
    const Tensor full = WholeNumbers(DType::kF64, shape);
    const std::vector<double> flags = SmallNumbers(shape);
    std::vector<double> expected;
    std::vector<double> slope(flags.size(), 0.0);
    const std::vector<double> elements = full.ToVector<double>();
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] == 0) continue;
      expected.push_back(elements[i]);
      slope[i] = static_cast<double>(expected.size());
    }
    const auto count = static_cast<int64_t>(expected.size());
    const DTensor x = Lay(context, full, layout);
    const std::string flat_layout = std::string(layout).substr(0, std::string(layout).find(" P"));
    const DTensor mask = Lay(context, FromDoubles(DType::kBool, shape, flags), flat_layout);
    for (int64_t capacity : {int64_t{0}, count / 2, count, count + 3}) {
      const SelectedElements selected = MaskedSelect(x, mask, {.extent = capacity, .fill = -7});
      EXPECT_EQ(ValuesOf(selected.values), Filled(expected, capacity, -7)) << shape << layout << capacity;
      EXPECT_EQ(selected.count.Item(), static_cast<double>(count));
    }
    EXPECT_EQ(ValuesOf(MaskedSelect(x, mask)), expected) << shape << layout;
    // Of nothing, nothing is taken that has a gradient.
    if (x.layout().HasPartial() || shape.num_elements() == 0) return;
    const DTensor leaf = x.RequiresGrad();
    const DTensor y = MaskedSelect(leaf, mask, {.extent = count + 1}).values;
    Backward(Sum(Mul(y, Arange(context, DType::kF64, 1, static_cast<double>(count + 2)))));
    EXPECT_EQ(ValuesOf(leaf.grad()), slope) << shape << layout;
  });
}

TEST(SelectionTest, NonZeroNamesThePlaces) {
  OnEveryPlace([](const Context& context, const Shape& shape, const char* layout) {
    const std::vector<double> values = SmallNumbers(shape);
    std::vector<double> expected;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == 0) continue;
      expected.push_back(static_cast<double>(static_cast<int64_t>(i) / shape[1]));
      expected.push_back(static_cast<double>(static_cast<int64_t>(i) % shape[1]));
    }
    const auto count = static_cast<int64_t>(expected.size()) / 2;
    for (DType dtype : {DType::kF64, DType::kI64}) {
      const DTensor x = Lay(context, FromDoubles(dtype, shape, values), layout);
      for (int64_t capacity : {int64_t{0}, count / 2, count, count + 2}) {
        const SelectedElements found = NonZero(x, {.extent = capacity, .fill = -1});
        EXPECT_EQ(found.values.type(), (TensorType{DType::kI64, {capacity, 2}}));
        EXPECT_EQ(ValuesOf(found.values), Filled(expected, capacity * 2, -1)) << shape << layout;
        EXPECT_EQ(found.count.Item(), static_cast<double>(count));
      }
      EXPECT_EQ(ValuesOf(NonZero(x)), expected) << shape << layout;
    }
  });
}

TEST(SelectionTest, UniqueSortsAndCounts) {
  OnEveryPlace([](const Context& context, const Shape& shape, const char* layout) {
    const std::vector<double> values = SmallNumbers(shape);
    std::map<double, double> counts;
    for (double value : values) ++counts[value];
    std::vector<double> distinct;
    std::vector<double> how_often;
    for (const auto& [value, count] : counts) {
      distinct.push_back(value);
      how_often.push_back(count);
    }
    std::vector<double> inverse;
    for (double value : values) {
      const auto found = std::lower_bound(distinct.begin(), distinct.end(), value);
      inverse.push_back(static_cast<double>(found - distinct.begin()));
    }
    const auto count = static_cast<int64_t>(distinct.size());
    for (DType dtype : {DType::kF32, DType::kI64, DType::kU8}) {
      if (dtype == DType::kU8 && std::string(layout).find('P') != std::string::npos) continue;
      const DTensor x = Lay(context, FromDoubles(dtype, shape, values), layout);
      for (int64_t capacity : {int64_t{0}, count / 2, count, count + 2}) {
        const UniqueElements unique = Unique(x, {.extent = capacity, .fill = 9});
        EXPECT_EQ(ValuesOf(unique.values), Filled(distinct, capacity, 9)) << shape << layout << dtype;
        EXPECT_EQ(ValuesOf(unique.inverse), inverse) << shape << layout << dtype;
        EXPECT_EQ(unique.inverse.shape(), shape);
        EXPECT_EQ(ValuesOf(unique.counts), Filled(how_often, capacity, 0)) << shape << layout << dtype;
        EXPECT_EQ(unique.count.Item(), static_cast<double>(count));
      }
      EXPECT_EQ(ValuesOf(Unique(x).values), distinct) << shape << layout << dtype;
    }
  });
}

TEST(SelectionTest, ScalarsAndBroadcastMasks) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor one = Full(context, DType::kF64, {}, 3);
    EXPECT_EQ(NonZero(one, {.extent = 2}).values.shape(), (Shape{2, 0}));
    EXPECT_EQ(NonZero(one).shape(), (Shape{1, 0}));
    EXPECT_EQ(ValuesOf(Unique(one).values), std::vector<double>{3});
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {3, 2}), "[a, -]");
    const DTensor mask = Lay(context, FromDoubles(DType::kBool, {2}, {0, 1}), "[-]");
    EXPECT_EQ(ValuesOf(MaskedSelect(x, mask)), (std::vector<double>{8, 22, 5}));
  });
}

TEST(SelectionTest, Errors) {
  OnMesh("", [](const Context& context) {
    const DTensor x = Full(context, DType::kI64, {2}, 1);
    EXPECT_THAT(ErrorOf([&] { NonZero(x, {.extent = -1}); }),
                HasSubstr("NonZero: expected a capacity of at least 0, got -1"));
    EXPECT_THAT(ErrorOf([&] { MaskedSelect(x, x); }),
                HasSubstr("MaskedSelect: expected a bool mask, got i64[2]"));
    const DTensor mask = Full(context, DType::kBool, {3, 2}, 1);
    EXPECT_THAT(ErrorOf([&] { MaskedSelect(x, mask); }),
                HasSubstr("MaskedSelect: bool[3, 2] [-, -] does not broadcast to i64[2]"));
    EXPECT_THAT(ErrorOf([&] { Unique(x, {.extent = 1, .fill = 0.5}); }),
                HasSubstr("i64 cannot hold the number 0.5"));
    // Also where there is nothing to select.
    EXPECT_THAT(ErrorOf([&] { Unique(Slice(x, 0, 0, 0), {.extent = 1, .fill = 0.5}); }),
                HasSubstr("i64 cannot hold the number 0.5"));
    const DTensor half = Full(context, DType::kF16, {2}, 1);
    EXPECT_THAT(ErrorOf([&] {
                  MaskedSelect(half, Full(context, DType::kBool, {2}, 1), {.extent = 3, .fill = -1e9});
                }),
                HasSubstr("f16 cannot hold the number -1e+09"));
    EXPECT_THAT(ErrorOf([&] { MaskedFill(half, Full(context, DType::kBool, {2}, 1), -1e9); }),
                HasSubstr("f16 cannot hold the number -1e+09"));
  });
}

}  // namespace
}  // namespace weft
