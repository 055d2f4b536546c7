#include "ops/op/op.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

std::vector<absl::string_view> Names(absl::string_view text) {
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

}  // namespace

int OpDef::FindValue(absl::string_view value_name) const {
  // By hand, since backward rules ask for what is saved by name: no list is made.
  int number = 0;
  for (const char* at : {operands(), outputs()}) {
    while (*at != '\0') {
      const char* const begin = at;
      while (*at != ' ' && *at != '\0') ++at;
      const absl::string_view name(begin, static_cast<size_t>(at - begin));
      if (name.empty()) {
        ++at;  // a blank before a name
        continue;
      }
      if (name == value_name) return number;
      ++number;
    }
  }
  return -1;
}

std::vector<std::vector<int>> OpDef::LinearGroups(int num_operands) const {
  const bool variadic = absl::EndsWith(operands(), "...");
  std::vector<std::vector<int>> groups;
  absl::string_view rest = absl::StripAsciiWhitespace(linear());
  while (!rest.empty()) {
    const size_t close = rest.find('}');
    WEFT_CHECK(rest.front() == '{' && close != rest.npos, name(), ": linear '", linear(),
               "' is no list of {groups}");
    std::vector<int> group;
    for (absl::string_view operand : Names(rest.substr(1, close - 1))) {
      if (variadic && operand == operands()) {
        for (int i = 0; i < num_operands; ++i) group.push_back(i);
        continue;
      }
      const int number = FindValue(operand);
      WEFT_CHECK(!variadic && number >= 0 && number < num_operands, name(), ": linear '", linear(),
                 "' names '", operand, "', operands are '", operands(), "'");
      group.push_back(number);
    }
    WEFT_CHECK(!group.empty() || variadic, name(), ": linear '", linear(), "' has an empty group");
    groups.push_back(group);
    rest.remove_prefix(close + 1);
    rest = absl::StripLeadingAsciiWhitespace(rest);
  }
  return groups;
}

}  // namespace weft
