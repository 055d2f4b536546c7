#include "ops/shape/reshape.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const ReshapeAttributes& a) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(absl::c_all_of(a.shape, [](int64_t extent) { return extent >= 0; }) &&
                   a.shape.num_elements() == x.shape.num_elements(),
               "reshape: ", x.ToString(), " has ", x.shape.num_elements(), " elements, so it cannot become ",
               a.shape.ToString());
  return {{x.dtype, a.shape}};
}

std::string Side(const std::vector<std::string>& factors) {
  return factors.empty() ? "()" : absl::StrJoin(factors, " ");
}

// Walks both shapes from the left in the smallest groups of equal products. A group of one dim on either side
// is that dim unchanged; the dims of any other are whole, by names that the other side lacks, but for what
// layout algebra lets pass.
class Matcher {
 public:
  Matcher(const Shape& from, const Shape& to)
      : from_(from), to_(to), left_(from.ndim(), "1"), right_(to.ndim(), "1") {}

  std::string Rule() {
    if (from_ == to_) {
      for (int dim = 0; dim < from_.ndim(); ++dim) left_[dim] = right_[dim] = absl::StrCat("f", dim);
    } else if (from_.num_elements() == 0) {
      for (int dim = 0; dim < from_.ndim(); ++dim) left_[dim] = absl::StrCat("x", dim, "!");
      for (int dim = 0; dim < to_.ndim(); ++dim) right_[dim] = absl::StrCat("y", dim, "!");
    } else {
      MatchGroups();
    }
    return absl::StrCat(Side(left_), " ~> ", Side(right_));
  }

 private:
  static int SkipOnes(const Shape& shape, int dim) {
    while (dim < shape.ndim() && shape[dim] == 1) ++dim;
    return dim;
  }

  void MatchGroups() {
    int i = SkipOnes(from_, 0);
    int j = SkipOnes(to_, 0);
    while (i < from_.ndim() && j < to_.ndim()) {
      if (from_[i] == to_[j]) {
        left_[i] = right_[j] = absl::StrCat("f", i);
        i = SkipOnes(from_, i + 1);
        j = SkipOnes(to_, j + 1);
        continue;
      }
      int64_t left_product = 1;
      int64_t right_product = 1;
      do {
        if (left_product <= right_product) {
          left_product *= TakeWhole(from_, "x", left_, i);
        } else {
          right_product *= TakeWhole(to_, "y", right_, j);
        }
      } while (left_product != right_product);
    }
  }

  // Marks dim `dim` as whole, moves on past the ones that follow, and returns its extent.
  static int64_t TakeWhole(const Shape& shape, const char* prefix, std::vector<std::string>& factors,
                           int& dim) {
    const int64_t extent = shape[dim];
    factors[dim] = absl::StrCat(prefix, dim, "!");
    dim = SkipOnes(shape, dim + 1);
    return extent;
  }

  const Shape& from_;
  const Shape& to_;
  std::vector<std::string> left_;
  std::vector<std::string> right_;
};

std::string Rule(absl::Span<const TensorType> operands, const ReshapeAttributes& a) {
  return Matcher(operands[0].shape, a.shape).Rule();
}

void Backward(GradContext<ReshapeAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kReshape, {ctx.grad()}, {ctx.operand_type(0).shape}));
}

std::vector<Sample<ReshapeAttributes>> Samples() {
  return {{{{{DType::kF32, {5, 2, 3}}}}, {{5, 6}}},    {{{{DType::kF32, {6, 5}}}}, {{2, 3, 5}}},
          {{{{DType::kF32, {3, 1, 4}}}}, {{1, 3, 4}}}, {{{{DType::kF32, {3, 4, 2}}}}, {{3, 2, 4}}},
          {{{{DType::kF32, {1, 1}}}}, {{}}},           {{{{DType::kF32, {3, 4, 5, 6}}}}, {{3, 20, 6, 1}}}};
}

}  // namespace

constinit const Op<ReshapeAttributes> kReshape = {{
    .name = "reshape",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .is_view = true,
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
