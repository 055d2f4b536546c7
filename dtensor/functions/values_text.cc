#include "dtensor/functions/values_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/redistribution/redistribute.h"
#include "mesh/redistribution/rearrangement.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

std::vector<std::string> Texts(const Tensor& values, int precision) {
  std::vector<std::string> texts;
  if (IsFloating(values.dtype())) {
    for (const double value : values.ToVector<double>()) {
      texts.push_back(absl::StrFormat("%.*g", precision, value));
    }
  } else if (values.dtype() == DType::kBool) {
    for (const double value : values.ToVector<double>()) texts.push_back(value != 0 ? "true" : "false");
  } else {
    for (const int64_t value : values.ToVector<int64_t>()) texts.push_back(absl::StrCat(value));
  }
  return texts;
}

// Writes brackets around what is shown of each dim; elements stand right in columns of one width.
class Writer {
 public:
  // `gaps`: of each dim, whether elements are left out behind the first `edge` of it.
  Writer(const Shape& shape, std::vector<std::string> texts, std::vector<bool> gaps, int64_t edge)
      : shape_(shape), texts_(std::move(texts)), gaps_(std::move(gaps)), edge_(edge) {
    for (const std::string& text : texts_) width_ = std::max(width_, text.size());
  }

  std::string Run() {
    if (shape_.ndim() == 0) return texts_[0];
    Write(0);
    return std::move(out_);
  }

 private:
  void Write(int dim) {
    out_ += "[";
    const bool is_row = dim + 1 == shape_.ndim();
    const std::string between = is_row ? ", " : absl::StrCat(",\n", std::string(dim + 1, ' '));
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0) out_ += between;
      if (gaps_[dim] && i == edge_) absl::StrAppend(&out_, "...", between);
      if (is_row) {
        absl::StrAppendFormat(&out_, "%*s", static_cast<int>(width_), texts_[next_++]);
      } else {
        Write(dim + 1);
      }
    }
    out_ += "]";
  }

  const Shape shape_;
  const std::vector<std::string> texts_;
  const std::vector<bool> gaps_;
  const int64_t edge_;
  size_t width_ = 0;
  size_t next_ = 0;
  std::string out_;
};

// What is shown of x, on every rank: of a dim with a gap the first and the last `edge` elements. Each rank puts what it has of
// that in its place among what is shown, and the axes that split x sum it up. Cut by slices, one dim after another, x would move
// along the first with its other dims whole.
Tensor Shown(const DTensor& x, const std::vector<bool>& gaps, int64_t edge) {
  MeshContext& context = *x.context();
  const ShardBox box = x.LocalBox();
  Shape shape = x.shape();
  for (int dim = 0; dim < x.ndim(); ++dim) {
    if (gaps[dim]) shape[dim] = 2 * edge;
  }
  const Tensor shown = Tensor::Empty(context.allocator(), x.dtype(), shape);
  FillTensor(shown, -0.0);  // which leaves every number as it is, 0 and -0 too
  std::vector<std::pair<Tensor, Tensor>> parts = {{x.ToLocal(), shown}};
  Layout terms = x.layout();
  AxisList axes;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    const int64_t begin = box.offset[dim], end = begin + box.shape[dim], extent = x.shape()[dim];
    std::vector<DimRun> runs = {{.length = extent}};
    if (gaps[dim]) runs = {{.length = edge}, {.from = extent - edge, .to = edge, .length = edge}};
    std::vector<std::pair<Tensor, Tensor>> cut;
    for (const DimRun& run : runs) {
      const int64_t first = std::max(begin, run.from), last = std::min(end, run.from + run.length);
      if (first >= last) continue;
      for (const auto& [from, to] : parts) {
        cut.emplace_back(from.Slice(dim, first - begin, last - first),
                         to.Slice(dim, run.to + first - run.from, last - first));
      }
    }
    parts = std::move(cut);
    for (const int axis : x.layout().ShardAxes(dim)) {
      terms = terms.WithReplicate(axis);
      if (context.mesh().axis_size(axis) > 1) axes.push_back(axis);
    }
  }
  for (const auto& [from, to] : parts) CopyTensor(from, to);
  std::sort(axes.begin(), axes.end());
  if (!axes.empty()) {
    context.Group(axes).AllReduce(shown, shown, ReduceOp::kSum, {.tag = context.state().tag()}).Wait();
  }
  const Layout everywhere(x.ndim(), context.mesh().num_axes());
  return RedistributeLocal(context, shown, {x.dtype(), shape}, terms, everywhere);
}

}  // namespace

std::string ValuesText(const DTensor& x, const ValuesTextOptions& options) {
  WEFT_REQUIRE(options.most >= 1 && options.edge >= 1 && options.precision >= 1,
               "ValuesText: expected options of at least 1, got most ", options.most, ", edge ", options.edge,
               ", precision ", options.precision);
  const PurposeGuard purpose(x.context()->state(), Purpose::kMetric);
  const bool shortens = x.shape().num_elements() > options.most;
  std::vector<bool> gaps;
  // `extent > 2 * edge` overflows for a large edge.
  for (const int64_t extent : x.shape()) gaps.push_back(shortens && extent - options.edge > options.edge);
  const Tensor values = shortens ? Shown(x, gaps, options.edge) : x.FullTensor();
  const std::vector<std::string> texts = Texts(values, options.precision);
  return absl::StrCat(x.ToString(), "\n", Writer(values.shape(), texts, gaps, options.edge).Run(), "\n");
}

}  // namespace weft
