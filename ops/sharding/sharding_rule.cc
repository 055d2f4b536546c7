#include "ops/sharding/sharding_rule.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

template <class... Parts>
[[noreturn]] void Defect(absl::string_view rule, const Parts&... parts) {
  Throw(absl::StatusCode::kInternal, "sharding rule '", rule, "': ", parts...);
}

bool IsName(absl::string_view name) {
  return !name.empty() && absl::ascii_isalpha(name.front()) &&
         absl::c_all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// Reads one operand or output after the other, collecting factors in order of appearance.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  // The values of one side, separated by commas; a blank side has none.
  std::vector<absl::string_view> Values(absl::string_view side) const {
    if (absl::StripAsciiWhitespace(side).empty()) return {};
    return absl::StrSplit(side, ',');
  }

  std::vector<int> Value(absl::string_view value, const TensorType& type) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(value, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    if (words.empty()) Defect(text_, "a value without dims is written ()");
    std::vector<int> dims;
    if (words.size() > 1 || words[0] != "()") {
      for (absl::string_view word : words) {
        const int dim = static_cast<int>(dims.size());
        dims.push_back(word == "1" ? -1 : FactorNumber(word, dim < type.ndim() ? type.shape[dim] : 0));
      }
    }
    if (static_cast<int>(dims.size()) != type.ndim()) {
      Defect(text_, "'", absl::StripAsciiWhitespace(value), "' has ", dims.size(), " dims, the type is ",
             type.ToString());
    }
    for (size_t i = 0; i < dims.size(); ++i) {
      const int factor = dims[i];
      if (factor < 0) continue;
      if (absl::c_count(dims, factor) > 1)
        Defect(text_, "'", rule.factors[factor].name, "' stands twice in one value");
      if (rule.factors[factor].indexed) {
        rule.factors[factor].size = std::max(rule.factors[factor].size, type.shape[i]);
      } else if (rule.factors[factor].size != type.shape[i]) {
        Defect(text_, "'", rule.factors[factor].name, "' stands for both ", rule.factors[factor].size,
               " and ", type.shape[i]);
      }
    }
    return dims;
  }

  // Takes the "{1 2}" off the end of an output.
  std::vector<int> MadeOf(absl::string_view& output, size_t num_operands) const {
    const size_t open = output.find('{');
    if (open == output.npos) return {};
    absl::string_view list = absl::StripAsciiWhitespace(output.substr(open + 1));
    if (!absl::ConsumeSuffix(&list, "}")) Defect(text_, "'", output.substr(open), "' has no end");
    output = output.substr(0, open);
    std::vector<int> numbers;
    for (absl::string_view word : absl::StrSplit(list, ' ', absl::SkipEmpty())) {
      int number = 0;
      if (!absl::SimpleAtoi(word, &number) || number < 0 || static_cast<size_t>(number) >= num_operands) {
        Defect(text_, "an output is made of '", word, "', which is none of ", num_operands, " operands");
      }
      numbers.push_back(number);
    }
    if (numbers.empty()) Defect(text_, "an output is made of no operand");
    return numbers;
  }

  // Takes the "max:" off the front of an output.
  ReduceOp Reduction(absl::string_view& output) const {
    const size_t colon = output.find(':');
    if (colon == output.npos) return ReduceOp::kSum;
    const absl::string_view kind = absl::StripAsciiWhitespace(output.substr(0, colon));
    output.remove_prefix(colon + 1);
    for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct, ReduceOp::kSum}) {
      if (kind == ReduceOpName(op)) return op;
    }
    Defect(text_, "unknown reduction '", kind, "': expected max, min, product or sum");
  }

  ShardingRule rule;

 private:
  // A mark counts wherever it stands: "f!" in one value makes f whole in all of them.
  int FactorNumber(absl::string_view word, int64_t extent) {
    const bool whole = absl::ConsumeSuffix(&word, "!");
    const bool indexed = absl::ConsumeSuffix(&word, "@");
    if (!IsName(word)) Defect(text_, "expected a factor name, '1' or '()', got '", word, "'");
    auto found = absl::c_find_if(rule.factors, [&](const Factor& factor) { return factor.name == word; });
    if (found == rule.factors.end()) {
      found = rule.factors.insert(found, {.name = std::string(word), .size = extent});
    }
    found->whole = found->whole || whole;
    found->indexed = found->indexed || indexed;
    return static_cast<int>(found - rule.factors.begin());
  }

  absl::string_view text_;
};

std::string ValueText(const std::vector<Factor>& factors, const std::vector<int>& dims) {
  if (dims.empty()) return "()";
  return absl::StrJoin(dims, " ", [&](std::string* out, int factor) {
    if (factor < 0) {
      out->append("1");
      return;
    }
    const Factor& f = factors[factor];
    absl::StrAppend(out, f.name, f.indexed ? "@" : "", f.whole ? "!" : "");
  });
}

// "f2 f3" for dims 2 and 3 of 4.
std::string Numbered(int begin, int end) {
  std::vector<std::string> names;
  for (int dim = begin; dim < end; ++dim) names.push_back(absl::StrCat("f", dim));
  return names.empty() ? "()" : absl::StrJoin(names, " ");
}

}  // namespace

std::string ShardingRule::ToString() const {
  std::vector<std::string> left;
  for (const std::vector<int>& dims : operands) left.push_back(ValueText(factors, dims));
  std::vector<std::string> right;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool sum = reductions[i] == ReduceOp::kSum;
    const std::string of = made_of[i].empty() ? "" : absl::StrCat(" {", absl::StrJoin(made_of[i], " "), "}");
    right.push_back(absl::StrCat(sum ? "" : ReduceOpName(reductions[i]), sum ? "" : ": ",
                                 ValueText(factors, outputs[i]), of));
  }
  return absl::StrCat(absl::StrJoin(left, ", "), left.empty() ? "" : " ", is_view ? "~> " : "-> ",
                      absl::StrJoin(right, ", "));
}

bool ShardingRule::IsMadeOf(int output, int operand) const {
  return made_of[output].empty() || absl::c_linear_search(made_of[output], operand);
}

ShardingRule ShardingRule::Parse(absl::string_view text, absl::Span<const TensorType> operands,
                                 absl::Span<const TensorType> outputs) {
  const bool is_view = absl::StrContains(text, "~>");
  const std::vector<absl::string_view> sides = absl::StrSplit(text, is_view ? "~>" : "->");
  if (sides.size() != 2) Defect(text, "expected one '->' or '~>'");
  Parser parser(text);
  parser.rule.is_view = is_view;
  const std::vector<absl::string_view> left = parser.Values(sides[0]);
  const std::vector<absl::string_view> right = parser.Values(sides[1]);
  if (left.size() != operands.size() || right.size() != outputs.size()) {
    Defect(text, left.size(), " operands and ", right.size(), " outputs, the call has ", operands.size(),
           " and ", outputs.size());
  }
  if (is_view && (left.size() != 1 || right.size() != 1)) Defect(text, "a view is of one operand");
  for (size_t i = 0; i < left.size(); ++i) {
    std::vector<int> dims = parser.Value(left[i], operands[i]);
    parser.rule.operands.push_back(std::move(dims));
  }
  for (size_t i = 0; i < right.size(); ++i) {
    absl::string_view output = right[i];
    parser.rule.reductions.push_back(parser.Reduction(output));
    parser.rule.made_of.push_back(parser.MadeOf(output, operands.size()));
    std::vector<int> dims = parser.Value(output, outputs[i]);
    parser.rule.outputs.push_back(std::move(dims));
  }
  return std::move(parser.rule);
}

std::string ElementwiseRule(int num_operands, int num_outputs, int ndim) {
  const std::string value = Numbered(0, ndim);
  return absl::StrCat(absl::StrJoin(std::vector<std::string>(num_operands, value), ", "), " -> ",
                      absl::StrJoin(std::vector<std::string>(num_outputs, value), ", "));
}

std::string BroadcastRule(absl::Span<const TensorType> operands) {
  int ndim = 0;
  for (const TensorType& type : operands) ndim = std::max(ndim, type.ndim());
  // An extent other than 1 decides a dim; one that is 1 everywhere stays an ordinary factor.
  // NumPy's rule, from the last dim. A stretched dim is "1" in the rule: it has no factor, so it is never
  // split, and each rank repeats it.
  std::vector<int64_t> common(ndim, 1);
  for (const TensorType& type : operands) {
    for (int dim = 0; dim < type.ndim(); ++dim) {
      int64_t& extent = common[ndim - type.ndim() + dim];
      if (type.shape[dim] != 1) extent = type.shape[dim];
    }
  }
  std::vector<std::string> values;
  for (const TensorType& type : operands) {
    std::vector<std::string> words;
    for (int dim = 0; dim < type.ndim(); ++dim) {
      const int out = ndim - type.ndim() + dim;
      const bool stretched = type.shape[dim] == 1 && common[out] != 1;
      WEFT_CHECK(stretched || type.shape[dim] == common[out], "shapes that do not broadcast: dim ", dim,
                 " of ", type.ToString(), " against extent ", common[out]);
      words.push_back(stretched ? "1" : absl::StrCat("f", out));
    }
    values.push_back(words.empty() ? "()" : absl::StrJoin(words, " "));
  }
  return absl::StrCat(absl::StrJoin(values, ", "), " -> ", Numbered(0, ndim));
}

}  // namespace weft
