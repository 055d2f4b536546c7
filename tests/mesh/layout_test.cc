#include "mesh/layout.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "mesh/placement.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

const DeviceMesh& Mesh() {
  static const DeviceMesh* const mesh = new DeviceMesh(DeviceMesh::Parse("dp=2, tp=2, cp=4, one=1"));
  return *mesh;
}

std::string ParseError(absl::string_view text) {
  return InvalidArgumentMessage([&] { Layout::Parse(text, Mesh()); });
}

// What a layout means, the long way round.
struct Model {
  std::vector<std::vector<int>> dims;  // the axes of each, outermost first
  std::map<int, ReduceOp> partial;

  void Leave(int axis) {
    for (std::vector<int>& axes : dims) axes.erase(std::remove(axes.begin(), axes.end(), axis), axes.end());
    partial.erase(axis);
  }

  bool TakesPartial(int axis, ReduceOp op) const {
    for (const auto& [other, kind] : partial) {
      const bool both_linear = static_cast<int>(op) < 2 && static_cast<int>(kind) < 2;  // sum, avg
      if (other != axis && op != kind && !both_linear) return false;
    }
    return true;
  }
};

void ExpectSame(const Layout& layout, const Model& model) {
  ASSERT_EQ(layout.ndim(), static_cast<int>(model.dims.size()));
  std::map<int, Placement> placements;
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    const AxisList axes = layout.ShardAxes(dim);
    ASSERT_EQ(std::vector<int>(axes.begin(), axes.end()), model.dims[dim]) << layout << ", dim " << dim;
    for (size_t i = 0; i < axes.size(); ++i) {
      EXPECT_EQ(layout.shard_dim(axes[i]), dim);
      EXPECT_EQ(layout.shard_position(axes[i]), static_cast<int>(i));
      placements[axes[i]] = Shard(dim);
    }
  }
  std::vector<int> partial_axes;
  for (const auto& [axis, op] : model.partial) {
    partial_axes.push_back(axis);
    placements[axis] = Partial(op);
    EXPECT_EQ(layout.partial_op(axis), op);
  }
  const AxisList axes = layout.PartialAxes();
  EXPECT_EQ(std::vector<int>(axes.begin(), axes.end()), partial_axes);
  EXPECT_EQ(layout.HasPartial(), !partial_axes.empty());
  EXPECT_EQ(layout.IsFullyReplicated(), placements.empty());
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    const Placement expected = placements.count(axis) ? placements[axis] : Replicate();
    EXPECT_EQ(layout.placement(axis), expected);
    EXPECT_EQ(layout.IsReplicate(axis), std::holds_alternative<Replicate>(expected));
    EXPECT_EQ(layout.IsShard(axis), std::holds_alternative<Shard>(expected));
    EXPECT_EQ(layout.IsPartial(axis), std::holds_alternative<Partial>(expected));
  }
}

// The same layout, built from nothing: equal only if every way to a layout ends in the same bytes.
Layout Rebuild(const Model& model, int num_axes) {
  Layout layout(static_cast<int>(model.dims.size()), num_axes);
  for (const auto& [axis, op] : model.partial) layout = layout.WithPartial(axis, op);
  for (size_t dim = 0; dim < model.dims.size(); ++dim) {
    for (int axis : model.dims[dim]) layout = layout.WithShard(axis, static_cast<int>(dim));
  }
  return layout;
}

TEST(LayoutTest, RandomChangesAgreeWithAModelAndTextComesBack) {
  std::mt19937 draw(1);
  for (int round = 0; round < 400; ++round) {
    const int num_axes = static_cast<int>(draw() % 9);
    const int ndim = static_cast<int>(draw() % 9);
    std::vector<MeshAxis> axes;
    for (int axis = 0; axis < num_axes; ++axis)
      axes.push_back({absl::StrCat("a", axis), int64_t{1} + axis % 2});
    const DeviceMesh mesh(axes);
    Layout layout(ndim, num_axes);
    Model model = {.dims = std::vector<std::vector<int>>(ndim), .partial = {}};
    for (int change = 0; change < 30 && num_axes > 0; ++change) {
      const int axis = static_cast<int>(draw() % num_axes);
      const uint32_t choice = draw() % 4;
      if (choice == 0) {
        layout = layout.With(axis, Replicate());
        model.Leave(axis);
      } else if (choice == 1) {
        const ReduceOp op = kAllReduceOps[draw() % 5];
        if (!model.TakesPartial(axis, op)) {
          EXPECT_THROW(layout.WithPartial(axis, op), Error);
          continue;
        }
        layout = layout.With(axis, Partial(op));
        model.Leave(axis);
        model.partial[axis] = op;
      } else if (ndim > 0) {
        const int dim = static_cast<int>(draw() % ndim);
        layout = layout.With(axis, Shard(draw() % 2 == 0 ? dim : dim - ndim));
        model.Leave(axis);
        model.dims[dim].push_back(axis);
      }
      ExpectSame(layout, model);
    }
    const Layout rebuilt = Rebuild(model, num_axes);
    EXPECT_EQ(layout, rebuilt);
    EXPECT_EQ(absl::Hash<Layout>()(layout), absl::Hash<Layout>()(rebuilt));
    const std::string text = layout.ToString(mesh);
    EXPECT_EQ(text, layout.ToString());
    EXPECT_EQ(Layout::Parse(text, mesh), layout) << text;
    std::string tight, loose;
    for (char c : text) {
      if (c != ' ') tight += c;
    }
    for (size_t i = 0; i < tight.size(); ++i) {
      const bool inside_word = i > 0 && absl::ascii_isalnum(tight[i]) && absl::ascii_isalnum(tight[i - 1]);
      absl::StrAppend(&loose, inside_word ? "" : " \t", tight.substr(i, 1));
    }
    EXPECT_EQ(Layout::Parse(tight, mesh), layout) << tight;
    EXPECT_EQ(Layout::Parse(loose, mesh), layout) << loose;
  }
}

TEST(LayoutTest, ListOrderIsNestingOrder) {
  const Layout layout(Mesh(), 2, {{"tp", Shard(0)}, {"cp", Partial()}, {"dp", Shard(-2)}});
  EXPECT_EQ(layout.ToString(Mesh()), "[tp.dp, -] P{cp}");
  EXPECT_EQ(layout.shard_position(0), 1);
  EXPECT_EQ(layout.shard_position(1), 0);
  EXPECT_FALSE(layout == Layout(Mesh(), 2, {{"dp", Shard(0)}, {"cp", Partial()}, {"tp", Shard(0)}}));
  EXPECT_EQ(layout,
            Layout(Mesh(), 2, {{"one", Replicate()}, {"tp", Shard(0)}, {"dp", Shard(0)}, {"cp", Partial()}}));
}

TEST(LayoutTest, InnerAxesCloseUp) {
  const Layout layout = Layout::Parse("[dp.tp.cp, -]", Mesh());
  EXPECT_EQ(layout.WithReplicate(0), Layout::Parse("[tp.cp, -]", Mesh()));
  EXPECT_EQ(layout.WithShard(1, 1), Layout::Parse("[dp.cp, tp]", Mesh()));
  EXPECT_EQ(layout.WithShard(0, 0), Layout::Parse("[tp.cp.dp, -]", Mesh()));
  EXPECT_EQ(layout.WithShard(2, 0), layout);
  EXPECT_EQ(layout.WithPartial(1), Layout::Parse("[dp.cp, -] P{tp}", Mesh()));
}

TEST(LayoutTest, AnAxisOfSizeOneStaysAsWritten) {
  EXPECT_FALSE(Layout::Parse("[one, -]", Mesh()) == Layout::Parse("[-, -]", Mesh()));
  EXPECT_EQ(Layout::Parse("[one, -]", Mesh()).ToString(Mesh()), "[one, -]");
}

TEST(LayoutTest, TextForm) {
  const auto text = [](const std::vector<AxisPlacement>& placements, int ndim) {
    return Layout(Mesh(), ndim, placements).ToString(Mesh());
  };
  const Partial sum, avg(ReduceOp::kAvg), max(ReduceOp::kMax), product(ReduceOp::kProduct);
  EXPECT_EQ(text({}, 0), "[]");
  EXPECT_EQ(text({}, 1), "[-]");
  EXPECT_EQ(text({{"dp", Shard(0)}, {"tp", Shard(1)}}, 2), "[dp, tp]");
  EXPECT_EQ(text({{"tp", Shard(0)}, {"dp", Shard(0)}}, 2), "[tp.dp, -]");
  EXPECT_EQ(text({{"tp", sum}}, 0), "[] P{tp}");
  EXPECT_EQ(text({{"tp", sum}, {"dp", sum}}, 1), "[-] P{dp,tp}");
  EXPECT_EQ(text({{"tp", max}, {"dp", max}}, 1), "[-] P{dp,tp:max}");
  EXPECT_EQ(text({{"tp", product}}, 1), "[-] P{tp:product}");
  EXPECT_EQ(text({{"tp", avg}, {"dp", sum}}, 1), "[-] P{dp:sum,tp:avg}");
  EXPECT_EQ(text({{"tp", sum}, {"dp", avg}}, 1), "[-] P{dp:avg,tp:sum}");
  EXPECT_EQ(Layout::Parse("[dp, -] P{tp}", Mesh()).ToString(), "[a0, -] P{a1}");
}

TEST(LayoutTest, PartialKindsInText) {
  const auto same = [](absl::string_view a, absl::string_view b) {
    return Layout::Parse(a, Mesh()) == Layout::Parse(b, Mesh());
  };
  EXPECT_TRUE(same("[]P{dp,tp:max}", "[] P{tp:max, dp:max}"));
  EXPECT_TRUE(same("[]P{dp,tp:avg}", "[] P{dp:avg,tp:avg}"));
  EXPECT_TRUE(same("[]P{dp,tp}", "[] P{dp:sum,tp:sum}"));
  EXPECT_TRUE(same("[]P{dp:avg,tp}", "[] P{dp:avg,tp:sum}"));
  EXPECT_TRUE(same("[]P{dp:sum,tp:avg}", "[] P{tp:avg,dp:sum}"));
  EXPECT_FALSE(same("[]P{dp,tp:avg}", "[] P{dp:sum,tp:avg}"));
}

TEST(LayoutTest, ParseErrorsNameThePlace) {
  const std::string axes = "an axis of mesh (dp=2, tp=2, cp=4, one=1)";
  EXPECT_EQ(ParseError(""), "cannot read layout \"\" at position 0: expected '[', got the end");
  EXPECT_EQ(ParseError("dp, tp"), "cannot read layout \"dp, tp\" at position 0: expected '[', got 'dp, tp'");
  EXPECT_EQ(ParseError("[dp, tp"),
            "cannot read layout \"[dp, tp\" at position 7: expected ',' or ']', got the end");
  EXPECT_EQ(ParseError("[dp, pp]"),
            "cannot read layout \"[dp, pp]\" at position 5: expected " + axes + ", got 'pp]'");
  EXPECT_EQ(ParseError("[dp, ]"),
            "cannot read layout \"[dp, ]\" at position 5: expected " + axes + ", got ']'");
  EXPECT_EQ(ParseError("[dp.-]"),
            "cannot read layout \"[dp.-]\" at position 4: expected " + axes + ", got '-]'");
  EXPECT_EQ(ParseError("[-dp]"),
            "cannot read layout \"[-dp]\" at position 2: expected ',' or ']', got 'dp]'");
  EXPECT_EQ(ParseError("[dp, dp]"),
            "cannot read layout \"[dp, dp]\" at position 5: expected each axis at most once, "
            "but 'dp' stands before, got 'dp]'");
  EXPECT_EQ(ParseError("[dp] P{dp}"),
            "cannot read layout \"[dp] P{dp}\" at position 7: expected each axis at most "
            "once, but 'dp' stands before, got 'dp}'");
  EXPECT_EQ(ParseError("[-] Q"),
            "cannot read layout \"[-] Q\" at position 4: expected P{...} or the end, got 'Q'");
  EXPECT_EQ(ParseError("[-] P{dp} x"),
            "cannot read layout \"[-] P{dp} x\" at position 10: expected the end, got 'x'");
  EXPECT_EQ(ParseError("[-] P dp"), "cannot read layout \"[-] P dp\" at position 6: expected '{', got 'dp'");
  EXPECT_EQ(ParseError("[-] P{}"),
            "cannot read layout \"[-] P{}\" at position 6: expected " + axes + ", got '}'");
  EXPECT_EQ(ParseError("[-] P{dp"),
            "cannot read layout \"[-] P{dp\" at position 8: expected ',' or '}', got the end");
  EXPECT_EQ(ParseError("[-] P{dp:mean}"),
            "cannot read layout \"[-] P{dp:mean}\" at position 9: expected one of sum, "
            "avg, min, max, product, got 'mean}'");
  EXPECT_EQ(ParseError("[-] P{dp:max,tp:min}"),
            "cannot read layout \"[-] P{dp:max,tp:min}\" at position 16: expected a kind that mixes with max "
            "(only sum "
            "and avg mix; unsaid is sum), got 'min}'");
  EXPECT_EQ(ParseError("[-] P{dp:max,tp}"),
            "cannot read layout \"[-] P{dp:max,tp}\" at position 15: expected a kind that mixes with max "
            "(only sum and "
            "avg mix; unsaid is sum), got '}'");
  EXPECT_EQ(ParseError("[-,-,-,-,-,-,-,-,-]"),
            "cannot read layout \"[-,-,-,-,-,-,-,-,-]\" at position 17: expected at "
            "most 8 dims, got '-]'");
}

TEST(LayoutTest, MisuseIsNamed) {
  EXPECT_EQ(InvalidArgumentMessage([] { Layout(9, 0); }), "a layout has 0 to 8 dims, got 9");
  EXPECT_EQ(InvalidArgumentMessage([] { Layout(0, 9); }), "a layout has 0 to 8 mesh axes, got 9");
  EXPECT_EQ(InvalidArgumentMessage([] { Layout(-1, 0); }), "a layout has 0 to 8 dims, got -1");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Layout(Mesh(), 1, {{"pp", Shard(0)}});
            }),
            "mesh (dp=2, tp=2, cp=4, one=1) has no axis 'pp'");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Layout(Mesh(), 1, {{"dp", Shard(0)}, {"dp", Replicate()}});
            }),
            "mesh axis 'dp' has two placements in one layout");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Layout(Mesh(), 2, {{"dp", Shard(2)}});
            }),
            "Shard(2) is out of range for a tensor of 2 dims");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Layout(Mesh(), 2, {{"dp", Shard(-3)}});
            }),
            "Shard(-3) is out of range for a tensor of 2 dims");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Layout(Mesh(), 1, {{"dp", Partial()}, {"tp", Partial(ReduceOp::kMax)}});
            }),
            "Partial(max) cannot join [-] P{a0}: one tensor has one partial kind; only sum and avg mix");
  EXPECT_EQ(InvalidArgumentMessage([] { Layout(1, 2).WithShard(2, 0); }),
            "axis 2 is out of range for a layout over 2 mesh axes");
}

TEST(LayoutTest, PlacementText) {
  EXPECT_EQ(ToString(Placement(Replicate())), "Replicate");
  EXPECT_EQ(ToString(Placement(Shard(1))), "Shard(1)");
  EXPECT_EQ(ToString(Placement(Partial(ReduceOp::kAvg))), "Partial(avg)");
}

}  // namespace
}  // namespace weft
