#ifndef WEFT_OPS_PRODUCT_CONTRACT_H_
#define WEFT_OPS_PRODUCT_CONTRACT_H_

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "ops/op/op.h"

namespace weft {

// Names the dims of one tensor, a lowercase letter each: "bsd". A value of at most 8 letters held in place.
// Errors: InvalidArgument for more than 8 letters, another character, or a letter that stands twice.
class DimLabels {
 public:
  constexpr DimLabels() = default;
  constexpr DimLabels(const char* letters) {  // NOLINT: implicit, so that attributes read as data
    for (; *letters != '\0'; ++letters) push_back(*letters);
  }

  constexpr int size() const { return size_; }
  constexpr char operator[](int dim) const { return letters_[dim]; }
  constexpr const char* begin() const { return letters_.data(); }
  constexpr const char* end() const { return letters_.data() + size_; }

  // The dim that `letter` names, or -1.
  constexpr int Find(char letter) const {
    for (int dim = 0; dim < size_; ++dim) {
      if (letters_[dim] == letter) return dim;
    }
    return -1;
  }
  constexpr bool Has(char letter) const { return Find(letter) >= 0; }

  constexpr void push_back(char letter) {
    WEFT_REQUIRE(letter >= 'a' && letter <= 'z', "dim labels are lowercase letters, got '",
                 absl::string_view(&letter, 1), "'");
    WEFT_REQUIRE(!Has(letter), "dim label '", absl::string_view(&letter, 1), "' stands twice in one tensor");
    WEFT_REQUIRE(size_ < Shape::kMaxDims, "a tensor has at most ", Shape::kMaxDims, " dims");
    letters_[size_++] = letter;
  }

  absl::string_view text() const { return {letters_.data(), static_cast<size_t>(size_)}; }
  constexpr bool operator==(const DimLabels&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const DimLabels& labels) {
    return H::combine(std::move(state), labels.text());
  }

 private:
  std::array<char, Shape::kMaxDims> letters_ = {};
  int size_ = 0;
};

// Which dims of x, w and y are the same. A letter of all three runs along (batch); one of x and w that y
// lacks is summed over; every other letter of x or w is in y.
struct ContractAttributes {
  DimLabels x;
  DimLabels w;
  DimLabels y;

  bool operator==(const ContractAttributes&) const = default;
};

// y = the sum of products of x and w over the dims that both have and y lacks: every matrix product is this
// op.
//
//   matmul          {"mk", "kn", "mn"}             weight gradient  {"bsd", "bsthe", "dthe"}
//   qkv projection  {"bsd", "dthe", "bsthe"}       batched          {"bmk", "bkn", "bmn"}
//   head, w^T       {"bsd", "vd", "bsv"}           outer, dot       {"m", "n", "mn"}, {"k", "k", ""}
//
// Shape:  y's dims are the letters' extents; an empty sum is 0. Floating, x and w of one dtype, which is y's;
//         bf16 and f16 are summed in f32 and rounded once.
// Layout: any letter may be split; splitting a summed one gives Partial(sum).
// Errors: InvalidArgument if a letter's extents differ, or one operand alone has a letter that y lacks.
extern const Op<ContractAttributes> kContract;

// The same plus a bias: y = contract(x, w) + b, where b lies along y's last dims, as many as it has. In one
// op, so that the product adds it as it writes y: an add of its own reads and writes y once more.
//
//   qkv {"bsd", "dthe", "bsthe"}, b [t, h, e]       x w^T + b {"bsd", "vd", "bsv"}, b [v]
//
// Shape:  as kContract; b of y's dtype and last extents. Halves are rounded once, or once more for b.
// Layout: as kContract; where a summed letter is split, b must be Partial: each piece of the sum adds its
//         share.
// Errors: as kContract; InvalidArgument if b's dims are not w's own: in w, not in x.
extern const Op<ContractAttributes> kLinear;

struct LinearWeightGradAttributes {
  ContractAttributes labels;  // of dw, as a product of x and dy
  int bias_ndim = 0;

  bool operator==(const LinearWeightGradAttributes&) const = default;
};

// What kLinear's backward makes of its w and b, (dw, db): dw = contract(x, dy), and db the sum of dy over all
// but its last bias_ndim dims. In one op, so that a device may sum dy as the product reads it.
//
// Shape:  dw as contract's y; db of dy's dtype and last extents.
// Layout: as kContract; db is made of dy alone.
// Errors: as kContract; InvalidArgument if db's dims are not dy's own: in dy, not in x.
extern const Op<LinearWeightGradAttributes> kLinearWeightGrad;

// kLinear of gelu(h), by tanh as GPT-2: (y, a), a = gelu(h). In one op, so that the gradient with respect to
// h is one product too; its memory is that of kGelu and kLinear in a row.
//
// Shape:  y as kLinear's; a as h.
// Layout: as kLinear, but h is never Partial; a lies as h.
// Errors: as kLinear.
extern const Op<ContractAttributes> kGeluLinear;

// What kGeluLinear's backward makes of its h: contract(dy, w) times gelu's derivative at h.
//
// Shape:  h and the result are of the product's type. Halves are rounded once, or once more before the
//         derivative.
// Layout: as kContract.
// Errors: as kContract; InvalidArgument if h is of another type.
extern const Op<ContractAttributes> kGeluLinearInputGrad;

}  // namespace weft

#endif  // WEFT_OPS_PRODUCT_CONTRACT_H_
