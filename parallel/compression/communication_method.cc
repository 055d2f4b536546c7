#include "parallel/compression/communication_method.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "parallel/compression/compressor_registry.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Type = MethodArgument::Type;

const MethodArgument* FindArgument(const CompressorRules& rules, absl::string_view name) {
  const auto found = std::find_if(rules.arguments.begin(), rules.arguments.end(),
                                  [&](const MethodArgument& argument) { return argument.name == name; });
  return found == rules.arguments.end() ? nullptr : &*found;
}

std::string ArgumentNames(const CompressorRules& rules) {
  if (rules.arguments.empty()) return "it takes none";
  return absl::StrCat("expected ", absl::StrJoin(rules.arguments, ", ", [](std::string* out, const auto& a) {
                        out->append(a.name);
                      }));
}

// Of one piece between commas: its argument's name and its value.
std::pair<std::string, double> ParseArgument(absl::string_view piece, bool is_first,
                                             const CompressorRules& rules, const std::string& where) {
  const std::vector<std::string> sides = absl::StrSplit(piece, absl::MaxSplits('=', 1));
  const bool is_named = sides.size() == 2;
  WEFT_REQUIRE(is_named || (is_first && !rules.arguments.empty()), where, ": '", piece,
               "': expected NAME=VALUE; ", ArgumentNames(rules));
  const std::string name(is_named ? absl::StripAsciiWhitespace(sides[0])
                                  : absl::string_view(rules.arguments[0].name));
  const std::string text(absl::StripAsciiWhitespace(sides.back()));
  const MethodArgument* const argument = FindArgument(rules, name);
  WEFT_REQUIRE(argument != nullptr, where, ": ", rules.name, " has no argument '", name, "'; ",
               ArgumentNames(rules));
  double value = 0;
  bool is_value = true;
  if (argument->type == Type::kFlag) {
    is_value = text == "true" || text == "false";
    value = text == "true" ? 1 : 0;
  } else {
    is_value = absl::SimpleAtod(text, &value) && argument->Accepts(value);
  }
  WEFT_REQUIRE(is_value, where, ": argument '", name, "': expected ", argument->Expected(), ", got '", text,
               "'");
  return {name, value};
}

}  // namespace

double CommunicationMethod::Get(absl::string_view argument) const {
  const MethodArgument* const known = FindArgument(FindCompressor(name), argument);
  WEFT_CHECK(known != nullptr, name, " has no argument ", argument);
  const auto found = arguments.find(std::string(argument));
  return found == arguments.end() ? known->standard : found->second;
}

CommunicationMethod CommunicationMethod::Parse(absl::string_view text) {
  const std::string where = absl::StrCat("communication '", text, "'");
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  CommunicationMethod method;
  const size_t open = rest.find('(');
  method.name = std::string(absl::StripAsciiWhitespace(rest.substr(0, open)));
  absl::string_view list;
  if (open != absl::string_view::npos) {
    list = rest.substr(open + 1);
    WEFT_REQUIRE(absl::ConsumeSuffix(&list, ")"), where, ": expected NAME or NAME(ARGUMENTS)");
    list = absl::StripAsciiWhitespace(list);
  }
  WEFT_REQUIRE(!method.is_none() || list.empty(), where, ": none takes no arguments");
  if (method.is_none()) return method;
  const CompressorRules* const rules = FindCompressorOrNull(method.name);
  WEFT_REQUIRE(rules != nullptr, where, ": unknown method '", method.name, "': expected one of ",
               absl::StrJoin(CompressorNames(), ", "));
  if (!list.empty()) {
    bool is_first = true;
    for (const absl::string_view piece : absl::StrSplit(list, ',')) {
      auto [name, value] = ParseArgument(absl::StripAsciiWhitespace(piece), is_first, *rules, where);
      is_first = false;
      WEFT_REQUIRE(method.arguments.emplace(name, value).second, where, ": argument '", name,
                   "' is given twice");
    }
  }
  for (const MethodArgument& argument : rules->arguments) {
    WEFT_REQUIRE(!argument.is_required || method.arguments.count(argument.name) > 0, where, ": ", rules->name,
                 " needs '", argument.name, "': ", argument.Expected());
  }
  if (rules->check != nullptr) rules->check(method);
  return method;
}

std::string CommunicationMethod::ToString() const {
  if (arguments.empty()) return name;
  std::vector<std::string> parts;
  const CompressorRules& rules = FindCompressor(name);
  for (size_t i = 0; i < rules.arguments.size(); ++i) {
    const auto found = arguments.find(rules.arguments[i].name);
    if (found == arguments.end()) continue;
    const std::string value = rules.arguments[i].ValueText(found->second);
    parts.push_back(i == 0 ? value : absl::StrCat(found->first, "=", value));
  }
  return absl::StrCat(name, "(", absl::StrJoin(parts, ", "), ")");
}

std::ostream& operator<<(std::ostream& out, const CommunicationMethod& method) {
  return out << method.ToString();
}

}  // namespace weft
