#include "runtime/base/flag_values.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"

namespace weft {

absl::CommandLineFlag& FlagNamed(absl::string_view name) {
  absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
  WEFT_CHECK(flag != nullptr, "the usage lists --", name, ", which no ABSL_FLAG defines");
  return *flag;
}

bool IsGiven(absl::string_view name) {
  const absl::CommandLineFlag& flag = FlagNamed(name);
  return flag.CurrentValue() != flag.DefaultValue();
}

std::vector<std::string> FlagNames(const FlagsUsage& usage) {
  std::vector<std::string> names;
  for (const FlagGroup& group : usage.groups) {
    names.insert(names.end(), group.flags.begin(), group.flags.end());
  }
  return names;
}

std::string ExpectedValue(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<int>() || flag.IsOfType<int64_t>()) return "a whole number";
  if (flag.IsOfType<uint32_t>() || flag.IsOfType<uint64_t>()) return "a whole number, not negative";
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "a number";
  if (flag.IsOfType<bool>()) return "true or false";
  return "";
}

std::optional<std::string> TrySetFlag(absl::string_view name, absl::string_view value) {
  absl::CommandLineFlag& flag = FlagNamed(name);
  std::string reason;
  if (flag.ParseFrom(value, &reason)) return std::nullopt;
  std::string expected = ExpectedValue(flag);
  // A flag type of the program's own says itself what it expects, after Abseil's sentence.
  if (expected.empty()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(reason, absl::MaxSplits("; ", 1));
    expected = parts.second.empty() ? absl::StrCat("a value like ", flag.DefaultValue()) : parts.second;
  }
  return expected;
}

std::optional<std::string> MeantName(absl::string_view name, const std::vector<std::string>& candidates) {
  if (candidates.empty()) return std::nullopt;
  const std::string nearest = NearestName(name, candidates);
  // Past half of the letters the nearest name is no help.
  if (EditDistance(name, nearest) * 2 > static_cast<int64_t>(std::max(name.size(), nearest.size()))) {
    return std::nullopt;
  }
  return nearest;
}

}  // namespace weft
