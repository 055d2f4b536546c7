// VisualizeSvg: panels, one per rank, arranged as the mesh is.

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/inspect/visualize.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int kSide = 96;     // the longer side of a panel
constexpr int kGap = 20;      // between panels
constexpr int kCaption = 18;  // below a panel
constexpr int kMargin = 16;
constexpr int kRowLabel = 60;
constexpr int kTitle = 34;

// Colours far apart for ranks that are near: steps of the golden angle around the colour circle.
std::string ColourOf(int64_t rank) {
  const double hue = std::fmod(static_cast<double>(rank) * 137.508 + 205, 360) / 60;
  const double high = 0.92;
  const double low = 0.58;
  const double part = 1 - std::abs(std::fmod(hue, 2) - 1);
  const double mid = low + (high - low) * part;
  const double red[] = {high, mid, low, low, mid, high};
  const double green[] = {mid, high, high, mid, low, low};
  const double blue[] = {low, low, mid, high, high, mid};
  const int sector = static_cast<int>(hue);
  const auto byte = [](double value) { return static_cast<int>(value * 255 + 0.5); };
  return absl::StrFormat("#%02x%02x%02x", byte(red[sector]), byte(green[sector]), byte(blue[sector]));
}

// The two dims that a panel shows, down and across; -1 for none.
struct ShownDims {
  int down = -1;
  int across = -1;
};

ShownDims ChooseDims(const Layout& layout) {
  std::vector<int> dims;
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    if (!layout.ShardAxes(dim).empty()) dims.push_back(dim);
  }
  for (int dim = layout.ndim() - 1; dim >= 0 && dims.size() < 2; --dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
  }
  dims.resize(std::min<size_t>(dims.size(), 2));
  std::sort(dims.begin(), dims.end());
  if (dims.empty()) return {};
  if (dims.size() == 1) return {-1, dims[0]};
  return {dims[0], dims[1]};
}

class Drawing {
 public:
  Drawing(const TensorType& type, const Layout& layout, const DeviceMesh& mesh)
      : type_(type), layout_(layout), mesh_(mesh), dims_(ChooseDims(layout)) {
    const double down = static_cast<double>(std::max<int64_t>(Extent(dims_.down), 1));
    const double across = static_cast<double>(std::max<int64_t>(Extent(dims_.across), 1));
    // To scale, but never flatter than one in three: a label has to fit.
    const double aspect = dims_.down < 0 ? 1.0 / 3 : std::clamp(down / across, 1.0 / 3, 3.0);
    width_ = static_cast<int>(std::lround(aspect <= 1 ? kSide : kSide / aspect));
    height_ = static_cast<int>(std::lround(aspect <= 1 ? kSide * aspect : kSide));
    const int num_axes = mesh.num_axes();
    columns_ = num_axes >= 1 ? mesh.axis_size(num_axes - 1) : 1;
    rows_ = num_axes >= 2 ? mesh.axis_size(num_axes - 2) : 1;
    blocks_ = num_axes >= 3 ? mesh.axis_size(0) : 1;
  }

  std::string Draw() {
    for (int rank : mesh_.ranks()) DrawPanel(rank);
    DrawAxisLabels();
    const int64_t title_width = static_cast<int64_t>(Title().size()) * 8 + 2 * kMargin;
    const int64_t width = std::max(Left(blocks_, 0) - kGap + kMargin, title_width);
    const int64_t height = Top(rows_) - kGap + kMargin;
    return absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
                        "\" viewBox=\"0 0 ", width, " ", height,
                        "\" font-family=\"sans-serif\" font-size=\"11\">\n",
                        "<defs><pattern id=\"term\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                        "patternTransform=\"rotate(45)\"><rect width=\"2\" height=\"6\" fill=\"#ffffff\"/>"
                        "</pattern></defs>\n",
                        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
                        Text(kMargin, kMargin + 6, "start", Title(), 13), body_, "</svg>\n");
  }

 private:
  int64_t Extent(int dim) const { return dim < 0 ? 1 : type_.shape[dim]; }
  std::string Title() const {
    return absl::StrCat(type_.ToString(), " ", layout_.ToString(mesh_), " over ",
                        mesh_.num_axes() == 0 ? "one device" : mesh_.ToString());
  }

  // Where a panel's column and row begin.
  int64_t CellWidth() const { return std::max(width_, kSide) + kGap; }
  int64_t Left(int64_t block, int64_t column) const {
    const int64_t block_width = columns_ * CellWidth() + kGap;
    return kMargin + (rows_ > 1 || blocks_ > 1 ? kRowLabel : 0) + block * block_width + column * CellWidth();
  }
  int64_t Top(int64_t row) const {
    const int headers = (mesh_.num_axes() >= 1 ? 18 : 0) + (mesh_.num_axes() >= 3 ? 18 : 0);
    return kTitle + headers + row * (height_ + kCaption + kGap);
  }

  static std::string Text(int64_t x, int64_t y, absl::string_view anchor, absl::string_view text,
                          int size = 11) {
    return absl::StrCat("<text x=\"", x, "\" y=\"", y, "\" text-anchor=\"", anchor, "\" font-size=\"", size,
                        "\" fill=\"#222222\">", text, "</text>\n");
  }
  static std::string Rect(double x, double y, double width, double height, absl::string_view style) {
    return absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" %s/>\n", x, y, width,
                           height, style);
  }

  void DrawPanel(int rank) {
    const std::vector<int64_t> coordinate = mesh_.CoordinateOf(rank);
    const size_t num_axes = coordinate.size();
    const int64_t x = Left(num_axes >= 3 ? coordinate[0] : 0, num_axes >= 1 ? coordinate[num_axes - 1] : 0);
    const int64_t y = Top(num_axes >= 2 ? coordinate[num_axes - 2] : 0);
    const ShardBox box = LocalBox(type_.shape, layout_, mesh_, coordinate);
    absl::StrAppend(&body_, "<g id=\"rank", rank, "\">\n");
    absl::StrAppend(&body_, Rect(static_cast<double>(x), static_cast<double>(y), width_, height_,
                                 "fill=\"#f2f2f2\" stroke=\"#9a9a9a\""));
    if (box.shape.num_elements() > 0) DrawPiece(x, y, box, ColourOf(rank));
    absl::StrAppend(&body_, Text(x + width_ / 2, y + height_ / 2 + 4, "middle", absl::StrCat("rank ", rank)));
    absl::StrAppend(&body_, Text(x + width_ / 2, y + height_ + 13, "middle", Caption(box), 10), "</g>\n");
  }

  void DrawPiece(int64_t x, int64_t y, const ShardBox& box, const std::string& colour) {
    const auto place = [&](int dim, int length) -> std::pair<double, double> {
      if (dim < 0) return {0, length};
      const double scale = length / static_cast<double>(type_.shape[dim]);
      return {static_cast<double>(box.offset[dim]) * scale, static_cast<double>(box.shape[dim]) * scale};
    };
    const auto [left, wide] = place(dims_.across, width_);
    const auto [top, high] = place(dims_.down, height_);
    const double at_x = static_cast<double>(x) + left;
    const double at_y = static_cast<double>(y) + top;
    absl::StrAppend(&body_,
                    Rect(at_x, at_y, wide, high, absl::StrCat("fill=\"", colour, "\" stroke=\"#555555\"")));
    if (layout_.HasPartial()) absl::StrAppend(&body_, Rect(at_x, at_y, wide, high, "fill=\"url(#term)\""));
  }

  std::string Caption(const ShardBox& box) const {
    if (box.shape.num_elements() == 0) return "nothing";
    std::vector<std::string> ranges;
    for (int dim = 0; dim < box.shape.ndim(); ++dim) {
      ranges.push_back(absl::StrCat(box.offset[dim], ":", box.offset[dim] + box.shape[dim]));
    }
    return absl::StrCat("[", absl::StrJoin(ranges, ", "), "]", layout_.HasPartial() ? " term" : "");
  }

  // A slice's fixed axis has one place, which stands for an index of the root's.
  std::string AxisLabel(int axis, int64_t place) const {
    return absl::StrCat(mesh_.axis_name(axis), "=", mesh_.IsFixed(axis) ? mesh_.fixed_index(axis) : place);
  }

  void DrawAxisLabels() {
    const int num_axes = mesh_.num_axes();
    if (num_axes == 0) return;
    for (int64_t block = 0; block < blocks_; ++block) {
      if (num_axes >= 3) {
        absl::StrAppend(&body_, Text(Left(block, 0), Top(0) - 24, "start", AxisLabel(0, block), 12));
      }
      for (int64_t column = 0; column < columns_; ++column) {
        absl::StrAppend(&body_, Text(Left(block, column) + width_ / 2, Top(0) - 6, "middle",
                                     AxisLabel(num_axes - 1, column)));
      }
    }
    for (int64_t row = 0; num_axes >= 2 && row < rows_; ++row) {
      absl::StrAppend(&body_,
                      Text(Left(0, 0) - 10, Top(row) + height_ / 2 + 4, "end", AxisLabel(num_axes - 2, row)));
    }
  }

  const TensorType& type_;
  const Layout& layout_;
  const DeviceMesh& mesh_;
  ShownDims dims_;
  int width_ = kSide;
  int height_ = kSide;
  int64_t columns_ = 1;
  int64_t rows_ = 1;
  int64_t blocks_ = 1;
  std::string body_;
};

}  // namespace

std::string VisualizeSvg(const TensorType& type, const Layout& layout, const DeviceMesh& mesh) {
  WEFT_REQUIRE(mesh.num_axes() <= 3, "VisualizeSvg: mesh ", mesh.ToString(), " has ", mesh.num_axes(),
               " axes; a picture shows at most 3, Visualize's text any number");
  return Drawing(type, layout, mesh).Draw();
}

std::string VisualizeSvg(const DTensor& tensor) {
  return VisualizeSvg(tensor.type(), tensor.layout(), tensor.context()->mesh());
}

}  // namespace weft
