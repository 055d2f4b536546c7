#include "runtime/base/config_file.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/json_text.h"
#include "runtime/base/repeated_key.h"
#include "runtime/base/whole_file.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using TextList = std::vector<std::string>;

std::string ReadFile(const std::string& path) {
  std::string text;
  try {
    text = ReadWholeFile(path);
  } catch (const Error& error) {
    Throw(error.code(), "--config: ", error.message());
  }
  WEFT_REQUIRE(!text.empty(), "--config=", path, ": it is empty");
  return text;
}

// An object whose keys are all different.
Json Parse(const std::string& path, const std::string& text) {
  RepeatedKey repeated;
  Json object;
  try {
    object = Json::parse(text, repeated.Callback());
  } catch (const Json::exception& error) {
    ThrowInvalidArgument("--config=", path, ": no JSON: ", error.what());
  }
  WEFT_REQUIRE(object.is_object(), "--config=", path, ": expected an object, got ", object.type_name());
  WEFT_REQUIRE(!repeated.key(), "--config=", path, ": key \"", *repeated.key(), "\" is given twice");
  return object;
}

std::string Shortened(const Json& value) {
  std::string text = JsonText(value);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 57), "...");
  return text;
}

bool IsWhole(const Json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  return std::trunc(number) == number && std::abs(number) < 0x1p53;
}

// A value as the flag's text; nothing if it is of another type.
std::optional<std::string> TextOf(const absl::CommandLineFlag& flag, const Json& value) {
  const std::string expected = ExpectedValue(flag);
  if (expected == "true or false") {
    if (!value.is_boolean()) return std::nullopt;
    return value.get<bool>() ? "true" : "false";
  }
  if (expected == "a number") {
    // JSON has no infinity and no NaN: EffectiveConfig writes texts.
    if (value == "inf" || value == "-inf" || value == "nan") return value.get<std::string>();
    return value.is_number() ? std::optional(value.dump()) : std::nullopt;
  }
  if (!expected.empty()) {
    if (!IsWhole(value)) return std::nullopt;
    return value.is_number_float() ? absl::StrCat(static_cast<int64_t>(value.get<double>())) : value.dump();
  }
  if (flag.IsOfType<TextList>()) {
    if (!value.is_array()) return std::nullopt;
    TextList texts;
    for (const Json& element : value) {
      if (!element.is_string()) return std::nullopt;
      texts.push_back(element.get<std::string>());
      if (texts.back().find(',') != std::string::npos) return std::nullopt;
    }
    return absl::StrJoin(texts, ",");
  }
  if (value.is_string()) return value.get<std::string>();
  return !flag.IsOfType<std::string>() && value.is_number() ? std::optional(value.dump()) : std::nullopt;
}

std::string ExpectedJson(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<std::string>()) return "a text";
  if (flag.IsOfType<TextList>()) return "an array of texts without commas";
  const std::string expected = ExpectedValue(flag);
  return expected.empty() ? absl::StrCat("a text like \"", flag.DefaultValue(), "\"") : expected;
}

std::string Underscored(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", "_"}, {" ", "_"}});
}

// Reads one file into flags.
class ConfigReader {
 public:
  ConfigReader(const std::string& path, const FlagsUsage& usage)
      : path_(path), usage_(usage), names_(FlagNames(usage)) {}

  void Read(const Json& object) {
    for (const auto& [key, value] : object.items()) {
      const std::string name = Underscored(key);
      const FlagGroup* const group = GroupNamed(name);
      // First, since a group may have the name of a flag, and no flag's value is an object.
      if (group != nullptr && value.is_object()) {
        ReadGroup(key, *group, value);
      } else if (IsFlag(name)) {
        Set(key, name, value);
      } else {
        ThrowUnknown(key, name);
      }
    }
  }

  void Set(const std::string& key, const std::string& name, const Json& value) {
    WEFT_REQUIRE(set_.insert(name).second, "--config=", path_, ": key \"", key, "\": --", name,
                 " is given twice");
    const absl::CommandLineFlag& flag = FlagNamed(name);
    const std::optional<std::string> text = TextOf(flag, value);
    WEFT_REQUIRE(text.has_value(), "--config=", path_, ": key \"", key, "\": expected ", ExpectedJson(flag),
                 ", got ", Shortened(value));
    const std::optional<std::string> expected = TrySetFlag(name, *text);
    WEFT_REQUIRE(!expected, "--config=", path_, ": key \"", key, "\": expected ", *expected, ", got ",
                 Shortened(value));
  }

  // Of a translated file: `value` is a text that the flag reads.
  void SetText(const std::string& system, const FlagValue& given) {
    WEFT_REQUIRE(IsFlag(given.flag), "--config=", path_, ": ", system, " says --", given.flag, "=",
                 given.value, ", a flag that this program does not have");
    const std::optional<std::string> expected = TrySetFlag(given.flag, given.value);
    WEFT_REQUIRE(!expected, "--config=", path_, ": ", system, " says --", given.flag, "=", given.value,
                 ": expected ", *expected);
    if (!given.is_default) set_.insert(given.flag);
  }

  const std::set<std::string>& set() const { return set_; }

 private:
  bool IsFlag(const std::string& name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }

  const FlagGroup* GroupNamed(const std::string& name) const {
    for (const FlagGroup& group : usage_.groups) {
      if (Underscored(group.title) == name) return &group;
    }
    return nullptr;
  }

  void ReadGroup(const std::string& title, const FlagGroup& group, const Json& object) {
    for (const auto& [key, value] : object.items()) {
      const std::string name = Underscored(key);
      const std::string full = absl::StrCat(title, ".", key);
      if (!IsFlag(name)) ThrowUnknown(full, name);
      const bool is_here = std::find(group.flags.begin(), group.flags.end(), name) != group.flags.end();
      WEFT_REQUIRE(is_here, "--config=", path_, ": key \"", full, "\": --", name, " is not of group \"",
                   group.title, "\"; write it outside, or in its own");
      Set(full, name, value);
    }
  }

  [[noreturn]] void ThrowUnknown(const std::string& key, const std::string& name) const {
    std::vector<std::string> candidates = names_;
    for (const FlagGroup& group : usage_.groups) candidates.push_back(group.title);
    const std::optional<std::string> meant = MeantName(name, candidates);
    ThrowInvalidArgument("--config=", path_, ": unknown key \"", key, "\": ",
                         meant ? absl::StrCat("did you mean \"", *meant, "\"?") : "--help lists the flags");
  }

  const std::string path_;
  const FlagsUsage& usage_;
  const std::vector<std::string> names_;
  std::set<std::string> set_;
};

const ForeignConfig* ForeignOf(const Json& object, const FlagsUsage& usage) {
  for (const ForeignConfig& foreign : usage.foreign) {
    for (const std::string& key : foreign.keys) {
      if (object.contains(key)) return &foreign;
    }
  }
  return nullptr;
}

// A file that has been read.
struct ConfigFile {
  std::string path;
  std::string text;
  Json object;
  const ForeignConfig* foreign = nullptr;  // null: it is the program's own
  std::vector<FlagValue> translated;       // what a foreign one says
  std::set<std::string> names;             // of the flags that one of the program's own gives
};

ConfigFile ReadConfigFile(const std::string& path, const FlagsUsage& usage) {
  ConfigFile file;
  file.path = path;
  file.text = ReadFile(path);
  file.object = Parse(path, file.text);
  file.foreign = ForeignOf(file.object, usage);
  return file;
}

std::vector<FlagValue> Translated(const ConfigFile& file, const FlagsAround& around) {
  try {
    return file.foreign->translate(file.text, around);
  } catch (const Error& error) {
    Throw(error.code(), "--config=", file.path, ": ", file.foreign->name, ": ", error.message());
  }
}

// Returns the names of the flags. `before`: those of files before it, which a system's defaults do not replace.
std::set<std::string> SetFlags(const ConfigFile& file, const FlagsUsage& usage,
                               const std::set<std::string>& before) {
  ConfigReader reader(file.path, usage);
  if (file.foreign == nullptr) reader.Read(file.object);
  for (const FlagValue& given : file.translated) {
    if (!given.is_default || before.count(given.flag) == 0) reader.SetText(file.foreign->name, given);
  }
  return reader.set();
}

Json ValueOf(const absl::CommandLineFlag& flag) {
  const std::string text = flag.CurrentValue();
  const std::string expected = ExpectedValue(flag);
  if (expected == "true or false") return text == "true";
  if (expected == "a number") {
    double number = 0;
    const bool is_number = absl::SimpleAtod(text, &number);
    return is_number && std::isfinite(number) ? Json(number) : Json(text);
  }
  if (!expected.empty()) return Json::parse(text);
  if (flag.IsOfType<TextList>()) {
    return text.empty() ? Json::array() : Json(TextList(absl::StrSplit(text, ',')));
  }
  return text;
}

}  // namespace

std::set<std::string> ApplyConfigFiles(const std::vector<std::string>& paths, const FlagsUsage& usage,
                                       const FlagsAround& around) {
  std::vector<ConfigFile> files;
  for (const std::string& path : paths) files.push_back(ReadConfigFile(path, usage));
  // So that a file of another system is translated beside what the program's own say, those behind it too.
  for (ConfigFile& file : files) {
    if (file.foreign == nullptr) file.names = SetFlags(file, usage, /*before=*/{});
  }
  for (auto file = files.begin(); file != files.end(); ++file) {
    if (file->foreign == nullptr) continue;
    const auto is_given = [&](absl::string_view flag) {
      const auto gives = [&](const ConfigFile& behind) { return behind.names.count(std::string(flag)) > 0; };
      return (around.is_given && around.is_given(flag)) || std::any_of(file + 1, files.end(), gives);
    };
    file->translated = Translated(*file, {.value_of = around.value_of, .is_given = is_given});
  }
  std::set<std::string> names;
  for (const ConfigFile& file : files) names.merge(SetFlags(file, usage, names));
  return names;
}

std::string EffectiveConfig(const FlagsUsage& usage) {
  Json object = Json::object();
  for (const std::string& name : FlagNames(usage)) object[name] = ValueOf(FlagNamed(name));
  return absl::StrCat(JsonText(object, /*indent=*/2), "\n");
}

}  // namespace weft
