#include "mesh/view_algebra.h"

#include <array>
#include <cstdint>
#include <iostream>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

std::string View(const char* mesh_text, const Shape& from, const char* layout, const Shape& to) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  const std::optional<Layout> result = ViewLayout(from, Layout::Parse(layout, mesh), to, mesh);
  return result ? result->ToString(mesh) : "none";
}

TEST(ViewAlgebraTest, WorkedCases) {
  EXPECT_EQ(View("a=2", {6, 4}, "[a, -]", {24}), "[a]");
  EXPECT_EQ(View("a=2", {5, 4}, "[a, -]", {20}), "none");
  EXPECT_EQ(View("a=3", {7, 2}, "[a, -]", {14}), "none");  // 3+3+1 rows are 6+6+2 elements, not 5+5+4
  EXPECT_EQ(View("a=2", {6, 4}, "[-, a]", {24}), "none");
  EXPECT_EQ(View("a=2", {24}, "[a]", {6, 4}), "[a, -]");
  EXPECT_EQ(View("a=2", {12, 8}, "[-, a]", {16, 6}), "none");
  EXPECT_EQ(View("a=2, b=2", {8}, "[a.b]", {2, 4}), "[a, b]");
  EXPECT_EQ(View("a=2, b=2", {8}, "[b.a]", {2, 4}), "[b, a]");
  EXPECT_EQ(View("a=2, b=2", {2, 3}, "[a, b]", {6}), "[a.b]");
  EXPECT_EQ(View("a=2, b=2", {2, 3}, "[b, a]", {6}), "[b.a]");
  EXPECT_EQ(View("a=4, b=2", {2, 4}, "[a, b]", {8}), "none");  // two of a's ranks hold no row
  EXPECT_EQ(View("tp=2, dp=2", {8, 3, 4}, "[tp.dp, -, -]", {8, 12}), "[tp.dp, -]");
  EXPECT_EQ(View("tp=2, dp=2", {8, 3, 4}, "[tp, -, dp]", {24, 4}), "[tp, dp]");
}

TEST(ViewAlgebraTest, WhatIsNotSplitStaysAsItIs) {
  EXPECT_EQ(View("a=2, b=3", {6, 4}, "[a, -] P{b:max}", {3, 8}), "none");
  EXPECT_EQ(View("a=2, b=3", {6, 4}, "[-, -] P{b:max}", {3, 8}), "[-, -] P{b:max}");
  EXPECT_EQ(View("a=2, b=3", {6, 4}, "[b, -] P{a:avg}", {3, 8}), "[b, -] P{a:avg}");
}

TEST(ViewAlgebraTest, AnAxisStaysWithItsDimWhereSeveralWouldDo) {
  EXPECT_EQ(View("a=2", {1, 6}, "[a, -]", {1, 2, 3}), "[a, -, -]");
  EXPECT_EQ(View("a=2", {3, 1}, "[-, a]", {1, 3, 1}), "[-, -, a]");
  EXPECT_EQ(View("a=1, b=2", {5, 6}, "[b, a]", {5, 2, 3}), "[b, a, -]");
  EXPECT_EQ(View("a=1", {1}, "[a]", {}), "[]");
  EXPECT_EQ(View("a=2", {1}, "[a]", {}), "none");  // rank 1 holds nothing, but every rank holds a scalar
  EXPECT_EQ(View("a=2", {0, 4}, "[a, -]", {0, 2, 2}), "[a, -, -]");
  EXPECT_EQ(View("a=2", {0, 4}, "[-, a]", {0, 2, 2}), "[-, a, -]");
}

TEST(ViewAlgebraTest, UnmergedShapeKeepsApartWhatWouldMove) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2, b=2");
  const auto unmerged = [&](const Shape& from, const char* layout, const Shape& to) {
    return UnmergedShape(from, Layout::Parse(layout, mesh), to, mesh);
  };
  EXPECT_EQ(unmerged({5, 4, 2, 3}, "[a, -, -, -]", {20, 6}), (Shape{5, 4, 6}));
  EXPECT_EQ(unmerged({5, 4, 2, 3}, "[a, -, -, b]", {20, 6}), (Shape{5, 4, 2, 3}));
  EXPECT_EQ(unmerged({4, 5, 6}, "[a, -, -]", {20, 2, 3}), (Shape{20, 2, 3}));
  EXPECT_EQ(unmerged({10, 6}, "[-, a]", {2, 5, 3, 2}), (Shape{2, 5, 6}));
  EXPECT_EQ(unmerged({3, 5, 1, 4}, "[-, a, -, -]", {15, 4}), (Shape{3, 5, 4}));
  EXPECT_EQ(unmerged({1, 1, 1, 1, 1, 1, 5, 4}, "[-, -, -, -, -, -, a, -]", {1, 1, 1, 1, 1, 1, 1, 20}).ndim(),
            8);
}

TEST(ViewAlgebraTest, LargeAxesCostNothing) {
  EXPECT_EQ(View("a=65536, b=16", {1 << 20, 64}, "[a.b, -]", {1 << 26}), "[a.b]");
  EXPECT_EQ(View("a=65536, b=16", {1 << 20, 64}, "[a, b]", {1 << 26}), "none");
}

TEST(ViewAlgebraTest, Errors) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              ViewLayout({2, 3}, Layout(2, 1), {5}, mesh);
            }),
            "shape [2, 3] has 6 elements, so it cannot be seen as [5]");
  EXPECT_EQ(InvalidArgumentMessage([&] { ViewLayout({6}, Layout(2, 1), {6}, mesh); }),
            "layout [-, -] is not one of a tensor of shape [6] on mesh (a=2)");
}

// The elements that each rank holds, as bits: the chunk rule told once more, element by element.
constexpr int kMaxRanks = 8;
using Holdings = std::array<uint64_t, kMaxRanks>;

Holdings HoldingsOf(const Shape& shape, const Layout& layout, const DeviceMesh& mesh) {
  Holdings holdings = {};
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
    std::array<int64_t, Shape::kMaxDims> begin = {};
    std::array<int64_t, Shape::kMaxDims> end = {};
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      end[dim] = shape[dim];
      for (int axis : layout.ShardAxes(dim)) {
        const int64_t n = mesh.axis_size(axis);
        const int64_t chunk = (end[dim] - begin[dim] + n - 1) / n;
        begin[dim] = std::min(end[dim], begin[dim] + chunk * coordinate[axis]);
        end[dim] = std::min(end[dim], begin[dim] + chunk);
      }
    }
    for (int64_t element = 0; element < shape.num_elements(); ++element) {
      bool held = true;
      int64_t rest = element;
      for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
        const int64_t index = rest % shape[dim];
        held = held && begin[dim] <= index && index < end[dim];
        rest /= shape[dim];
      }
      if (held) holdings[rank] |= uint64_t{1} << element;
    }
  }
  return holdings;
}

// Every layout without Partial, nested orders included.
std::vector<Layout> AllLayouts(int ndim, const DeviceMesh& mesh) {
  std::vector<Layout> layouts = {Layout(ndim, mesh.num_axes())};
  absl::flat_hash_set<Layout> seen = {layouts[0]};
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      for (int dim = 0; dim < ndim; ++dim) {
        if (!layouts[i].IsReplicate(axis)) continue;
        const Layout more = layouts[i].WithShard(axis, dim);
        if (seen.insert(more).second) layouts.push_back(more);
      }
    }
  }
  return layouts;
}

// Whether the axes of one size appear in ascending order, dim by dim, replicated ones last. Every layout is
// such a one but for the names of equal axes, and names decide nothing.
bool IsCanonical(const Layout& layout, const DeviceMesh& mesh) {
  std::vector<int> order;
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    for (int axis : layout.ShardAxes(dim)) order.push_back(axis);
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (layout.IsReplicate(axis)) order.push_back(axis);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = i + 1; j < order.size(); ++j) {
      if (mesh.axis_size(order[i]) == mesh.axis_size(order[j]) && order[i] > order[j]) return false;
    }
  }
  return true;
}

// One shape over one mesh: what every layout makes the ranks hold.
struct Held {
  std::vector<Layout> layouts;  // the canonical ones
  absl::flat_hash_map<Layout, Holdings> holdings;
  absl::flat_hash_set<Holdings> possible;
};

Held HeldBy(const Shape& shape, const DeviceMesh& mesh) {
  Held held;
  for (const Layout& layout : AllLayouts(shape.ndim(), mesh)) {
    const Holdings holdings = HoldingsOf(shape, layout, mesh);
    held.holdings[layout] = holdings;
    held.possible.insert(holdings);
    if (IsCanonical(layout, mesh)) held.layouts.push_back(layout);
  }
  return held;
}

struct Counts {
  int64_t cases = 0;
  int64_t passed = 0;
  int64_t refused = 0;
};

// Everything that the algebra says about views of `from` as `to`, against the elements that ranks hold.
void Prove(const Shape& from, const Held& from_held, const Shape& to, const Held& to_held,
           const DeviceMesh& mesh, Counts& counts) {
  for (const Layout& layout : from_held.layouts) {
    const Holdings& holdings = from_held.holdings.at(layout);
    const std::optional<Layout> result = ViewLayout(from, layout, to, mesh);
    ++counts.cases;
    ++(result ? counts.passed : counts.refused);
    const bool right =
        result ? to_held.holdings.at(*result) == holdings : !to_held.possible.contains(holdings);
    if (right) continue;
    ADD_FAILURE() << from << " " << layout.ToString(mesh) << " on " << mesh << " as " << to
                  << (result ? " is not " + result->ToString(mesh) : " is refused, though there is a layout");
  }
}

// All shapes of up to 4 dims with `num_elements` elements.
std::vector<Shape> ShapesOf(int64_t num_elements) {
  std::vector<Shape> shapes;
  if (num_elements == 1) shapes.push_back({});
  const auto extend = [&](auto&& self, Shape shape, int64_t rest) -> void {
    if (shape.ndim() > 0 && rest == 1) shapes.push_back(shape);
    if (shape.ndim() == 4) return;
    for (int64_t extent = 1; extent <= rest; ++extent) {
      if (rest % extent != 0) continue;
      Shape longer = shape;
      longer.push_back(extent);
      self(self, longer, rest / extent);
    }
  };
  extend(extend, {}, num_elements);
  return shapes;
}

void ProveAll(const std::vector<Shape>& shapes, const DeviceMesh& mesh, Counts& counts) {
  std::vector<Held> held;
  for (const Shape& shape : shapes) held.push_back(HeldBy(shape, mesh));
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (size_t j = 0; j < shapes.size(); ++j) {
      Prove(shapes[i], held[i], shapes[j], held[j], mesh, counts);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// The proof: every view of every tensor of up to 4 dims and 24 elements, every layout, every mesh of axes of
// 2 and 3 with at most 8 ranks, and axes of 4 to 8. What is offered is exact, and nothing is refused that has
// a layout.
TEST(ViewAlgebraTest, ProvesOrRefusesEveryView) {
  for (const char* text :
       {"a=2", "a=3", "a=4", "a=5", "a=8", "a=2, b=2", "a=2, b=3", "a=3, b=2", "a=2, b=4", "a=2, b=2, c=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    Counts counts;
    for (int64_t n = 1; n <= 24; ++n) ProveAll(ShapesOf(n), mesh, counts);
    std::cout << text << ": " << counts.cases << " views, " << counts.passed << " pass, " << counts.refused
              << " refused\n";
    EXPECT_GT(counts.passed, 0);
    EXPECT_GT(counts.refused, 0);
  }
}

TEST(ViewAlgebraTest, WithoutElementsEveryViewPasses) {
  std::vector<Shape> shapes;
  for (int64_t a = 0; a < 4; ++a) {
    for (int64_t b = 0; b < 4; ++b) {
      if (a * b == 0) shapes.push_back({a, b});
      for (int64_t c = 0; c < 4; ++c) {
        if (a * b * c == 0) shapes.push_back({a, b, c});
      }
    }
  }
  Counts counts;
  ProveAll(shapes, DeviceMesh::Parse("a=2, b=3"), counts);
  EXPECT_EQ(counts.refused, 0);
}

// Beyond the proof: up to 6 dims and 64 elements, axes of size 1 among the others.
TEST(ViewAlgebraTest, RandomViews) {
  std::mt19937_64 random(11);
  const auto shape_of = [&](int64_t n) {
    Shape shape;
    while (shape.ndim() < 5 && random() % 5 != 0) {
      std::vector<int64_t> divisors;
      for (int64_t d = 1; d <= n; ++d) {
        if (n % d == 0) divisors.push_back(d);
      }
      shape.push_back(divisors[random() % divisors.size()]);
      n /= shape[shape.ndim() - 1];
    }
    shape.push_back(n);
    return shape;
  };
  Counts counts;
  for (const char* text : {"a=2, b=1, c=4", "a=1, b=3, c=2", "a=2, b=2, c=2", "a=1, b=1, c=8"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    for (int64_t n : {6, 8, 16, 30, 32, 36, 48, 60, 64}) {
      const Shape from = shape_of(n);
      const Shape to = shape_of(n);
      Prove(from, HeldBy(from, mesh), to, HeldBy(to, mesh), mesh, counts);
    }
  }
  EXPECT_GT(counts.passed, 200);
  EXPECT_GT(counts.refused, 200);
}

}  // namespace
}  // namespace weft
