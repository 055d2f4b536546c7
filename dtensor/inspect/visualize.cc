#include "dtensor/inspect/visualize.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

// A box and who holds it: copies, each of one rank or of the ranks that hold its terms.
struct HeldBox {
  ShardBox box;
  std::vector<std::vector<int>> copies;
};

struct Holding {
  std::vector<HeldBox> boxes;  // by offset, row-major
  std::vector<int> idle;       // ranks without an element
};

Holding WhoHoldsWhat(const Shape& shape, const Layout& layout, const DeviceMesh& mesh) {
  std::map<std::vector<int64_t>, HeldBox> by_offset;
  std::map<std::vector<int64_t>, size_t> copy_of;  // by the coordinate, 0 along Partial axes
  Holding holding;
  for (int rank : mesh.ranks()) {
    std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
    const ShardBox box = LocalBox(shape, layout, mesh, coordinate);
    if (box.shape.num_elements() == 0) {
      holding.idle.push_back(rank);
      continue;
    }
    for (int axis : layout.PartialAxes()) coordinate[axis] = 0;
    HeldBox& held = by_offset[std::vector<int64_t>(box.offset.begin(), box.offset.end())];
    held.box = box;
    const auto [it, first] = copy_of.try_emplace(coordinate, held.copies.size());
    if (first) held.copies.emplace_back();
    held.copies[it->second].push_back(rank);
  }
  for (auto& [offset, held] : by_offset) holding.boxes.push_back(std::move(held));
  return holding;
}

std::string JoinShortened(const std::vector<std::string>& words, absl::string_view separator) {
  constexpr size_t kAtMost = 6;
  if (words.size() <= kAtMost) return absl::StrJoin(words, separator);
  return absl::StrCat(words[0], separator, words[1], separator, "...", separator, words.back());
}

std::string CellText(const HeldBox& held, const Layout& layout) {
  const AxisList partial = layout.PartialAxes();
  const ReduceOp op = partial.empty() ? ReduceOp::kSum : layout.partial_op(partial[0]);
  std::vector<std::string> copies;
  for (const std::vector<int>& terms : held.copies) {
    std::vector<std::string> ranks;
    for (int rank : terms) ranks.push_back(absl::StrCat(rank));
    const bool sum = op == ReduceOp::kSum || partial.empty();
    copies.push_back(sum ? JoinShortened(ranks, "+")
                         : absl::StrCat(ReduceOpName(op), "(", JoinShortened(ranks, ","), ")"));
  }
  return JoinShortened(copies, "=");
}

std::string RangeText(int64_t offset, int64_t size) { return absl::StrCat(offset, ":", offset + size); }

std::string Centered(absl::string_view text, size_t width) {
  const size_t blanks = width - text.size();
  return absl::StrCat(std::string(blanks / 2, ' '), text, std::string(blanks - blanks / 2, ' '));
}

// The grid of a tensor of one dim (a row) or two.
std::string Grid(const Holding& holding, const Layout& layout) {
  const int last = layout.ndim() - 1;
  std::map<int64_t, std::string> rows;  // offset to label
  std::map<int64_t, std::string> columns;
  std::map<std::pair<int64_t, int64_t>, std::string> cells;
  for (const HeldBox& held : holding.boxes) {
    const ShardBox& box = held.box;
    const int64_t row = last == 0 ? 0 : box.offset[0];
    rows[row] = last == 0 ? "" : RangeText(row, box.shape[0]);
    columns[box.offset[last]] = RangeText(box.offset[last], box.shape[last]);
    cells[{row, box.offset[last]}] = CellText(held, layout);
  }
  size_t label_width = 0;
  for (const auto& [offset, label] : rows) label_width = std::max(label_width, label.size());
  std::map<int64_t, size_t> widths;
  for (const auto& [offset, label] : columns) widths[offset] = label.size() + 2;
  for (const auto& [place, text] : cells) {
    widths[place.second] = std::max(widths[place.second], text.size() + 2);
  }
  const std::string margin(label_width + 2, ' ');
  std::string header = margin + " ";
  std::string rule = margin + "+";
  for (const auto& [offset, label] : columns) {
    absl::StrAppend(&header, Centered(label, widths[offset]), " ");
    absl::StrAppend(&rule, std::string(widths[offset], '-'), "+");
  }
  header.resize(header.find_last_not_of(' ') + 1);
  std::string text = absl::StrCat(header, "\n", rule, "\n");
  for (const auto& [row, label] : rows) {
    absl::StrAppend(&text, "  ", std::string(label_width - label.size(), ' '), label, "|");
    for (const auto& [column, range] : columns) {
      absl::StrAppend(&text, Centered(cells[{row, column}], widths[column]), "|");
    }
    absl::StrAppend(&text, "\n", rule, "\n");
  }
  return text;
}

std::string BoxText(const ShardBox& box) {
  std::vector<std::string> ranges;
  for (int dim = 0; dim < box.shape.ndim(); ++dim)
    ranges.push_back(RangeText(box.offset[dim], box.shape[dim]));
  return absl::StrCat("[", absl::StrJoin(ranges, ", "), "]");
}

std::string List(const Holding& holding, const Layout& layout) {
  size_t width = 0;
  for (const HeldBox& held : holding.boxes) width = std::max(width, BoxText(held.box).size());
  std::string text;
  for (const HeldBox& held : holding.boxes) {
    const std::string box = BoxText(held.box);
    absl::StrAppend(&text, "  ", box, std::string(width - box.size() + 2, ' '), CellText(held, layout), "\n");
  }
  return text;
}

}  // namespace

std::string Visualize(const TensorType& type, const Layout& layout, const DeviceMesh& mesh) {
  const Holding holding = WhoHoldsWhat(type.shape, layout, mesh);
  std::string text = absl::StrCat(type.ToString(), " ", layout.ToString(mesh), " over ",
                                  mesh.num_axes() == 0 ? "one device" : mesh.ToString(), "\n");
  const bool grid = (layout.ndim() == 1 || layout.ndim() == 2) && !holding.boxes.empty();
  absl::StrAppend(&text, grid ? Grid(holding, layout) : List(holding, layout));
  if (holding.idle.empty()) return text;
  std::vector<std::string> idle;
  for (int rank : holding.idle) idle.push_back(absl::StrCat(rank));
  absl::StrAppend(&text, "  no element: ", idle.size() == 1 ? "rank " : "ranks ", JoinShortened(idle, ", "),
                  "\n");
  return text;
}

std::string Visualize(const DTensor& tensor) {
  return Visualize(tensor.type(), tensor.layout(), tensor.context()->mesh());
}

}  // namespace weft
