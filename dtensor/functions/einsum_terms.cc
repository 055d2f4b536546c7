#include "dtensor/functions/einsum_terms.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

// The letters of one term; "..." stands before letter `ellipsis`.
struct Term {
  std::vector<EinsumLabel> letters;
  std::optional<size_t> ellipsis;
};

std::string LabelText(EinsumLabel label) {
  if (label >= kFirstEllipsisLabel) return "of '...'";
  const char letter = static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26);
  return absl::StrCat("'", absl::string_view(&letter, 1), "'");
}

class Parser {
 public:
  Parser(absl::string_view equation, absl::Span<const Shape> shapes)
      : what_(absl::StrCat("Einsum \"", equation, "\": ")), shapes_(shapes) {
    for (char c : equation) {
      if (!absl::ascii_isspace(c)) text_.push_back(c);
    }
  }

  EinsumTerms Run() {
    const std::vector<std::string> sides = absl::StrSplit(text_, "->");
    WEFT_REQUIRE(sides.size() <= 2, what_, "expected at most one '->'");
    const std::vector<std::string> texts = absl::StrSplit(sides[0], ',');
    WEFT_REQUIRE(!shapes_.empty() && texts.size() == shapes_.size(), what_, "has ", texts.size(),
                 " terms, got ", shapes_.size(), " operands");
    std::vector<Term> terms;
    for (const std::string& text : texts) terms.push_back(ParseTerm(text));
    for (size_t i = 0; i < terms.size(); ++i) {
      num_ellipsis_ = std::max(num_ellipsis_, EllipsisDims(terms[i], static_cast<int>(i)));
    }
    for (size_t i = 0; i < terms.size(); ++i) AddOperand(terms[i], static_cast<int>(i));
    if (sides.size() == 2) {
      AddOutput(ParseTerm(sides[1]));
    } else {
      AddImplicitOutput(terms);
    }
    return result_;
  }

 private:
  Term ParseTerm(absl::string_view text) const {
    Term term;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (absl::StartsWith(text.substr(i), "...")) {
        WEFT_REQUIRE(!term.ellipsis, what_, "'...' stands twice in \"", text, "\"");
        term.ellipsis = term.letters.size();
        i += 2;
        continue;
      }
      WEFT_REQUIRE(absl::ascii_isalpha(c), what_, "expected letters, ',', '...' and '->', got '",
                   absl::string_view(&c, 1), "'");
      const EinsumLabel label = absl::ascii_isupper(c) ? c - 'A' : 26 + c - 'a';
      WEFT_REQUIRE(std::find(term.letters.begin(), term.letters.end(), label) == term.letters.end(), what_,
                   "letter ", LabelText(label), " stands twice in \"", text,
                   "\": diagonals are not supported; name the dims apart");
      term.letters.push_back(label);
    }
    return term;
  }

  int EllipsisDims(const Term& term, int operand) const {
    const int letters = static_cast<int>(term.letters.size());
    const int ndim = shapes_[operand].ndim();
    WEFT_REQUIRE(term.ellipsis ? letters <= ndim : letters == ndim, what_, "operand ", operand, " is ",
                 shapes_[operand].ToString(), ", its term has ", letters, " letters",
                 term.ellipsis ? " beside '...'" : "");
    return ndim - letters;
  }

  // The term's labels, with the last `count` of the ellipsis.
  std::vector<EinsumLabel> WithEllipsis(const Term& term, int count) const {
    std::vector<EinsumLabel> labels = term.letters;
    std::vector<EinsumLabel> dims;
    for (int i = num_ellipsis_ - count; i < num_ellipsis_; ++i) dims.push_back(kFirstEllipsisLabel + i);
    const size_t at = term.ellipsis.value_or(0);
    labels.insert(labels.begin() + static_cast<int64_t>(at), dims.begin(), dims.end());
    return labels;
  }

  void AddOperand(const Term& term, int operand) {
    const std::vector<EinsumLabel> labels = WithEllipsis(term, EllipsisDims(term, operand));
    for (size_t dim = 0; dim < labels.size(); ++dim) {
      const int64_t extent = shapes_[operand][static_cast<int>(dim)];
      int64_t& known = result_.extents[labels[dim]];
      const bool first = (seen_ >> labels[dim] & 1) == 0;
      WEFT_REQUIRE(first || known == extent || known == 1 || extent == 1, what_, "dim ",
                   LabelText(labels[dim]), " is ", extent, " in operand ", operand, " ",
                   shapes_[operand].ToString(), " and ", known, " before it");
      if (first || known == 1) known = extent;
      seen_ |= EinsumLabelSet{1} << labels[dim];
    }
    result_.operands.push_back(labels);
  }

  void AddOutput(const Term& term) {
    result_.output = WithEllipsis(term, term.ellipsis ? num_ellipsis_ : 0);
    for (EinsumLabel label : result_.output) {
      WEFT_REQUIRE((seen_ >> label & 1) != 0, what_, "letter ", LabelText(label),
                   " of the output is in no operand");
    }
    RequireFits();
  }

  void AddImplicitOutput(const std::vector<Term>& terms) {
    std::array<int, kNumEinsumLabels> count = {};
    for (const Term& term : terms) {
      for (EinsumLabel label : term.letters) ++count[label];
    }
    for (int i = 0; i < num_ellipsis_; ++i) result_.output.push_back(kFirstEllipsisLabel + i);
    for (EinsumLabel label = 0; label < kFirstEllipsisLabel; ++label) {
      if (count[label] == 1) result_.output.push_back(label);
    }
    RequireFits();
  }

  void RequireFits() const {
    WEFT_REQUIRE(result_.output.size() <= static_cast<size_t>(Shape::kMaxDims), what_, "the output has ",
                 result_.output.size(), " dims, a tensor at most ", Shape::kMaxDims);
  }

  const std::string what_;
  absl::Span<const Shape> shapes_;
  std::string text_;
  int num_ellipsis_ = 0;
  EinsumLabelSet seen_ = 0;
  EinsumTerms result_;
};

}  // namespace

EinsumLabelSet LabelSet(const std::vector<EinsumLabel>& labels) {
  EinsumLabelSet set = 0;
  for (EinsumLabel label : labels) set |= EinsumLabelSet{1} << label;
  return set;
}

EinsumTerms ParseEinsum(absl::string_view equation, absl::Span<const Shape> shapes) {
  return Parser(equation, shapes).Run();
}

}  // namespace weft
