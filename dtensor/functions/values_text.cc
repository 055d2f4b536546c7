#include "dtensor/functions/values_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/functions/shape.h"
#include "dtensor/redistribution/implicit.h"

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

}  // namespace

std::string ValuesText(const DTensor& x, const ValuesTextOptions& options) {
  WEFT_REQUIRE(options.most >= 1 && options.edge >= 1 && options.precision >= 1,
               "ValuesText: expected options of at least 1, got most ", options.most, ", edge ", options.edge,
               ", precision ", options.precision);
  RankState& state = x.context()->state();
  const NoGradGuard no_grad(state);
  const NoImplicitChecksGuard asked_for(state);
  const PurposeGuard purpose(state, Purpose::kMetric);
  const bool shortens = x.shape().num_elements() > options.most;
  DTensor shown = x.Detach();
  std::vector<bool> gaps;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    const int64_t extent = x.shape()[dim];
    gaps.push_back(shortens && extent > 2 * options.edge);
    if (!gaps.back()) continue;
    shown = Concat(
        {Slice(shown, dim, 0, options.edge), Slice(shown, dim, extent - options.edge, options.edge)}, dim);
  }
  const Tensor values = shown.FullTensor();
  const std::vector<std::string> texts = Texts(values, options.precision);
  return absl::StrCat(x.ToString(), "\n", Writer(values.shape(), texts, gaps, options.edge).Run(), "\n");
}

}  // namespace weft
