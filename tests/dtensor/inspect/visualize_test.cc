#include "dtensor/inspect/visualize.h"

#include <regex>
#include <set>

#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string Draw(absl::string_view mesh_text, const Shape& shape, absl::string_view layout) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  return Visualize({DType::kF32, shape}, Layout::Parse(layout, mesh), mesh);
}

std::string DrawSvg(absl::string_view mesh_text, const Shape& shape, absl::string_view layout) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  return VisualizeSvg({DType::kF32, shape}, Layout::Parse(layout, mesh), mesh);
}

TEST(VisualizeTest, TwoDims) {
  EXPECT_EQ(Draw("dp=2,tp=2", {5, 4}, "[dp, tp]"),
            "f32[5, 4] [dp, tp] over dp=2, tp=2\n"
            "       0:2   2:4\n"
            "     +-----+-----+\n"
            "  0:3|  0  |  1  |\n"
            "     +-----+-----+\n"
            "  3:5|  2  |  3  |\n"
            "     +-----+-----+\n");
}

TEST(VisualizeTest, CopiesAndTerms) {
  EXPECT_THAT(Draw("dp=2,tp=2", {5, 4}, "[dp, -]"), HasSubstr("  0:3| 0=1 |\n"));
  EXPECT_THAT(Draw("dp=2,tp=2", {5, 4}, "[dp, -]"), HasSubstr("  3:5| 2=3 |\n"));
  EXPECT_THAT(Draw("dp=2,tp=2", {5, 4}, "[-, tp] P{dp}"), HasSubstr("  0:5| 0+2 | 1+3 |\n"));
  EXPECT_THAT(Draw("dp=2,tp=2", {5, 4}, "[-, -] P{tp}"), HasSubstr("| 0+1=2+3 |\n"));
  EXPECT_THAT(Draw("dp=2,tp=2", {5, 4}, "[-, -] P{dp}"), HasSubstr("| 0+2=1+3 |\n"));
  EXPECT_THAT(Draw("dp=2,tp=2", {5, 4}, "[-, -] P{dp,tp:max}"), HasSubstr("| max(0,1,2,3) |\n"));
  EXPECT_THAT(Draw("a=16", {5, 4}, "[-, -]"), HasSubstr("| 0=1=...=15 |\n"));
}

TEST(VisualizeTest, OneDimNestedAndUneven) {
  // 5 over 2 x 2, the inner axis first in the mesh's order: 2 1 1 1.
  EXPECT_EQ(Draw("a=2,b=2", {5}, "[b.a]"),
            "f32[5] [b.a] over a=2, b=2\n"
            "    0:2   2:3   3:4   4:5\n"
            "  +-----+-----+-----+-----+\n"
            "  |  0  |  2  |  1  |  3  |\n"
            "  +-----+-----+-----+-----+\n");
  EXPECT_EQ(Draw("a=4", {5}, "[a]"),
            "f32[5] [a] over a=4\n"
            "    0:2   2:4   4:5\n"
            "  +-----+-----+-----+\n"
            "  |  0  |  1  |  2  |\n"
            "  +-----+-----+-----+\n"
            "  no element: rank 3\n");
}

TEST(VisualizeTest, OtherDimsAreLists) {
  EXPECT_EQ(Draw("a=2,b=2", {3, 2, 4}, "[a, -, b]"),
            "f32[3, 2, 4] [a, -, b] over a=2, b=2\n"
            "  [0:2, 0:2, 0:2]  0\n"
            "  [0:2, 0:2, 2:4]  1\n"
            "  [2:3, 0:2, 0:2]  2\n"
            "  [2:3, 0:2, 2:4]  3\n");
  EXPECT_EQ(Draw("a=2", {}, "[] P{a}"), "f32[] [] P{a} over a=2\n  []  0+1\n");
  EXPECT_EQ(Draw("", {}, "[]"), "f32[] [] over one device\n  []  0\n");
  EXPECT_EQ(Draw("a=2", {0, 3}, "[a, -]"), "f32[0, 3] [a, -] over a=2\n  no element: ranks 0, 1\n");
}

TEST(VisualizeTest, OfADTensor) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 2}, 1), "[a, -]");
    EXPECT_EQ(Visualize(x), Visualize(x.type(), x.layout(), context->mesh()));
    EXPECT_EQ(VisualizeSvg(x), VisualizeSvg(x.type(), x.layout(), context->mesh()));
    EXPECT_THAT(Visualize(x), HasSubstr("0:2"));
  });
}

struct Rectangle {
  double x, y, width, height;
  std::string fill;
};

// The rectangles of a rank's panel: the whole, then what it holds, then hatching.
std::vector<Rectangle> Panel(const std::string& svg, int rank) {
  const size_t begin = svg.find(absl::StrCat("<g id=\"rank", rank, "\">"));
  if (begin == std::string::npos) return {};
  const std::string group = svg.substr(begin, svg.find("</g>", begin) - begin);
  const std::regex rect(
      "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" height=\"([0-9.]+)\" fill=\"([^\"]+)\"");
  std::vector<Rectangle> result;
  for (std::sregex_iterator it(group.begin(), group.end(), rect), end; it != end; ++it) {
    result.push_back(
        {std::stod((*it)[1]), std::stod((*it)[2]), std::stod((*it)[3]), std::stod((*it)[4]), (*it)[5]});
  }
  return result;
}

// Tags open and close in order.
bool IsWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)[^<>]*?(/?)>");
  size_t covered = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it, ++covered) {
    if ((*it)[3].length() > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back((*it)[2]);
    } else {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    }
  }
  return open.empty() && covered > 0 &&
         std::count(svg.begin(), svg.end(), '<') == static_cast<int64_t>(covered);
}

// In every panel the filled part is to the whole as the piece is to the tensor, and panels do not overlap.
TEST(VisualizeSvgTest, PanelsAreToScale) {
  struct Case {
    const char* mesh;
    Shape shape;
    const char* layout;
  };
  for (const Case& c : {Case{"", {4, 4}, "[-, -]"}, Case{"a=3", {6, 4}, "[a, -]"},
                        Case{"a=2,b=3", {6, 4}, "[a, b]"}, Case{"a=2,b=2,c=2", {8, 8}, "[a.b, c]"},
                        Case{"a=4", {9}, "[a]"}, Case{"a=2,b=2", {4, 2, 6}, "[a, -, b]"}}) {
    const std::string svg = DrawSvg(c.mesh, c.shape, c.layout);
    EXPECT_TRUE(IsWellFormed(svg)) << svg;
    const DeviceMesh mesh = DeviceMesh::Parse(c.mesh);
    std::set<std::string> colours;
    size_t drawn = 0;
    std::vector<Rectangle> wholes;
    for (int rank : mesh.ranks()) {
      const std::vector<Rectangle> panel = Panel(svg, rank);
      const ShardBox box = LocalBox(c.shape, Layout::Parse(c.layout, mesh), mesh, mesh.CoordinateOf(rank));
      ASSERT_GE(panel.size(), 1u);
      wholes.push_back(panel[0]);
      if (box.shape.num_elements() == 0) {
        EXPECT_EQ(panel.size(), 1u);
        continue;
      }
      ++drawn;
      ASSERT_EQ(panel.size(), 2u) << "no hatching without Partial";
      const double shown =
          static_cast<double>(box.shape.num_elements()) / static_cast<double>(c.shape.num_elements());
      EXPECT_NEAR(panel[1].width * panel[1].height / (panel[0].width * panel[0].height), shown, 0.02);
      EXPECT_GE(panel[1].x, panel[0].x);
      EXPECT_LE(panel[1].y + panel[1].height, panel[0].y + panel[0].height + 0.1);
      colours.insert(panel[1].fill);
      EXPECT_THAT(svg, HasSubstr(absl::StrCat(">rank ", rank, "<")));
    }
    EXPECT_EQ(colours.size(), drawn) << "a colour of its own for every rank that holds something";
    for (size_t i = 0; i < wholes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Rectangle &a = wholes[i], &b = wholes[j];
        EXPECT_TRUE(a.x >= b.x + b.width || b.x >= a.x + a.width || a.y >= b.y + b.height ||
                    b.y >= a.y + a.height);
      }
    }
  }
}

TEST(VisualizeSvgTest, SaysWhereARankStandsAndHatchesTerms) {
  const std::string svg = DrawSvg("pp=2,dp=2,tp=2", {4, 4}, "[dp, -] P{tp}");
  for (const char* label : {">pp=0<", ">pp=1<", ">dp=0<", ">dp=1<", ">tp=0<", ">tp=1<", ">[0:2, 0:4] term<",
                            ">f32[4, 4] [dp, -] P{tp} over pp=2, dp=2, tp=2<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
  const std::vector<Rectangle> panel = Panel(svg, 7);
  ASSERT_EQ(panel.size(), 3u);
  EXPECT_EQ(panel[2].fill, "url(#term)");
  EXPECT_THAT(DrawSvg("a=4", {5}, "[a]"), HasSubstr(">nothing<"));
  EXPECT_THAT(ErrorOf([] { DrawSvg("a=2,b=2,c=2,d=2", {4}, "[a]"); }),
              HasSubstr("has 4 axes; a picture shows at most 3"));
}

TEST(VisualizeSvgTest, ASliceIsLabelledByItsPlaceInTheMesh) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2,dp=2,tp=3");
  for (const char* axis : {"pp", "dp", "tp"}) {
    const DeviceMesh slice = mesh.Slice({{axis, 1}});
    const std::string svg = VisualizeSvg({DType::kF32, {4, 4}}, Layout::Parse("[-, -]", slice), slice);
    EXPECT_THAT(svg, HasSubstr(absl::StrCat(">", axis, "=1<")));
    EXPECT_THAT(svg, Not(HasSubstr(absl::StrCat(">", axis, "=0<"))));
    EXPECT_EQ(Panel(svg, 0).size(), 0u);  // rank 0 is in none of them
  }
}

}  // namespace
}  // namespace weft
