#include "tools/rules/deliberate.h"

#include <regex>
#include <string>

namespace weft {

const std::vector<Deliberate>& DeliberateList() {
  static const auto* const kList = new std::vector<Deliberate>{
      {"", "", R"(P\{a:(max|min|product)\}.*->)",
       "only sums and averages pass through ops: extrema and products are reduced where they arise"},
      {"^(adamw|sgd|momentum|nesterov|lion|lerp|count)_update$|^clip_factor$|^adamw_rates$", "", R"(P\{.*->)",
       "an optimizer works on gradients at rest, which are not Partial"},
      {"^settle$", "", R"(P\{.*->)", "it is there to have a Partial reduced"},
      {"^extremum_mask$", "", R"(P\{.*->)",
       "it compares values, and terms of a Partial are none: equal only while the samples hold no extremum"},
      {"^exp$", "", R"(->.*P\{a:product\})",
       "a product of exponentials over- and underflows where the sum does not"},
      {"^(attention|layer_norm|rms_norm|(layer|rms)_norm_grad|layer_norm_weight_grad|cross_entropy_finish)$",
       "", R"(P\{.*->)", "the rule does not say that some output is not made of the operand"},
      {"^reduce_(max|min)$", R"(^\(\))", R"(P\{.*->)", "a reduction of no dims, which is the identity"},
      {"", "", R"(P\{a:avg\}.*->)",
       "propagation makes the replicated operands of the group averages too, which communicates nothing"},
      {"^attention(_grad)?$", "q! e!", "",
       "grouped heads are split in their five-dim form, heads apart from groups"},
      {"^(reshape|slice|permute|unbind)$", R"(\b1\b)", "",
       "a dim of extent 1 has one piece: splitting it gains nothing"},
      {"^concat$", "^[^,]*->", "", "a concatenation of one operand, which is the identity"},
  };
  return *kList;
}

std::string DeliberateReason(absl::string_view op, absl::string_view rule, absl::string_view strategy) {
  const auto fits = [](absl::string_view text, const char* pattern) {
    return std::regex_search(text.begin(), text.end(), std::regex(pattern));
  };
  for (const Deliberate& entry : DeliberateList()) {
    if (fits(op, entry.op) && fits(rule, entry.rule) && fits(strategy, entry.strategy)) return entry.reason;
  }
  return "";
}

}  // namespace weft
