#include "parallel/compression/compressor_registry.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/named_table.h"
#include "runtime/base/number_text.h"

namespace weft {
namespace {

NamedTable<CompressorRules>& Table() {
  static auto* const table = new NamedTable<CompressorRules>("communication method");
  return *table;
}

}  // namespace

std::string MethodArgument::Expected() const {
  if (type == Type::kFlag) return "true or false";
  const char* const kind = type == Type::kWholeNumber ? "a whole number " : "a number ";
  if (excludes_least) return absl::StrCat(kind, "above ", ValueText(least), ", at most ", ValueText(most));
  return absl::StrCat(kind, "from ", ValueText(least), " to ", ValueText(most));
}

bool MethodArgument::Accepts(double value) const {
  if (type == Type::kFlag) return value == 0 || value == 1;
  const bool is_enough = excludes_least ? value > least : value >= least;
  return is_enough && value <= most && (type == Type::kNumber || value == std::floor(value));
}

std::string MethodArgument::ValueText(double value) const {
  if (type == Type::kFlag) return value != 0 ? "true" : "false";
  if (type == Type::kWholeNumber) return absl::StrFormat("%.0f", value);
  return NumberText(value);
}

RegisterCompressor::RegisterCompressor(CompressorRules rules) {
  const std::string name = rules.name;
  Table().Add(name, std::move(rules));
}

const CompressorRules& FindCompressor(absl::string_view name) { return Table().Get(name); }
const CompressorRules* FindCompressorOrNull(absl::string_view name) { return Table().Find(name); }

std::vector<std::string> CompressorNames() {
  std::vector<std::string> names = {"none"};
  for (const auto& [name, rules] : Table().values()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace weft
