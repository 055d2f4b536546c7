#include "runtime/base/flags.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/error_file.h"
#include "runtime/base/nearest.h"
#include "runtime/base/version.h"

namespace weft {
namespace {

constexpr size_t kHelpColumn = 30;
constexpr size_t kHelpWidth = 110;

absl::CommandLineFlag& Definition(const std::string& name) {
  absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
  WEFT_CHECK(flag != nullptr, "the usage lists --", name, ", which no ABSL_FLAG defines");
  return *flag;
}

std::vector<std::string> NamesOf(const FlagsUsage& usage) {
  std::vector<std::string> names;
  for (const FlagGroup& group : usage.groups) {
    names.insert(names.end(), group.flags.begin(), group.flags.end());
  }
  return names;
}

[[noreturn]] void ThrowUnknownFlag(const std::string& written, const std::string& name,
                                   std::vector<std::string> candidates) {
  candidates.insert(candidates.end(), {"help", "version"});
  const std::string nearest = NearestName(name, candidates);
  // Past half of the letters the nearest name is no help.
  if (EditDistance(name, nearest) * 2 > static_cast<int64_t>(std::max(name.size(), nearest.size()))) {
    ThrowInvalidArgument("unknown flag --", written, ": --help lists the flags");
  }
  ThrowInvalidArgument("unknown flag --", written, ": did you mean --", nearest, "?");
}

absl::string_view ExpectedValue(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<int>() || flag.IsOfType<int64_t>()) return "a whole number";
  if (flag.IsOfType<uint32_t>() || flag.IsOfType<uint64_t>()) return "a whole number, not negative";
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "a number";
  if (flag.IsOfType<bool>()) return "true or false";
  return "";
}

void SetFlag(const std::string& name, absl::string_view value) {
  absl::CommandLineFlag& flag = Definition(name);
  std::string reason;
  if (flag.ParseFrom(value, &reason)) return;
  std::string expected(ExpectedValue(flag));
  // A flag type of the program's own says itself what it expects, after Abseil's sentence.
  if (expected.empty()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(reason, absl::MaxSplits("; ", 1));
    expected = parts.second.empty() ? absl::StrCat("a value like ", flag.DefaultValue()) : parts.second;
  }
  ThrowInvalidArgument("flag --", name, ": cannot read \"", value, "\": expected ", expected);
}

// A flag as it was written, and the one that it names.
struct Argument {
  std::string written;
  std::string name;
  std::optional<std::string> value;
};

Argument SplitArgument(absl::string_view text) {
  WEFT_REQUIRE(text.size() > 1 && text[0] == '-' && text != "--", "unexpected argument \"", text,
               "\": flags are written --name=value");
  const size_t dashes = text[1] == '-' ? 2 : 1;
  const absl::string_view body = text.substr(dashes);
  const size_t equals = body.find('=');
  Argument argument;
  argument.written = std::string(body.substr(0, equals));
  argument.name = absl::StrReplaceAll(argument.written, {{"-", "_"}});
  if (equals != absl::string_view::npos) argument.value = std::string(body.substr(equals + 1));
  return argument;
}

std::string Wrapped(absl::string_view text) {
  std::string result;
  size_t column = kHelpColumn;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (column > kHelpColumn && column + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(&result, "\n", std::string(kHelpColumn, ' '));
      column = kHelpColumn;
    }
    if (column > kHelpColumn) {
      absl::StrAppend(&result, " ");
      ++column;
    }
    absl::StrAppend(&result, word);
    column += word.size();
  }
  return result;
}

std::string HelpLine(const std::string& left, absl::string_view help) {
  std::string line = absl::StrCat("  ", left);
  const bool fits = line.size() + 2 <= kHelpColumn;
  line +=
      fits ? std::string(kHelpColumn - line.size(), ' ') : absl::StrCat("\n", std::string(kHelpColumn, ' '));
  return absl::StrCat(line, Wrapped(help), "\n");
}

int Fail(absl::string_view message) {
  // A tool that reads stderr by lines must see the whole error.
  std::vector<absl::string_view> lines;
  for (absl::string_view line : absl::StrSplit(message, absl::ByAnyChar("\r\n"), absl::SkipWhitespace())) {
    lines.push_back(absl::StripAsciiWhitespace(line));
  }
  std::cout.flush();
  std::cerr << absl::StrCat("error: ", absl::StrJoin(lines, " "), "\n") << std::flush;
  return 1;
}

}  // namespace

ParsedFlags ParseFlags(int argc, const char* const* argv, const FlagsUsage& usage) {
  const std::vector<std::string> names = NamesOf(usage);
  const auto known = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  ParsedFlags parsed;
  for (int i = 1; i < argc; ++i) {
    Argument argument = SplitArgument(argv[i]);
    if (argument.name == "help" || argument.name == "h") {
      parsed.help = true;
      return parsed;
    }
    if (argument.name == "version") {
      parsed.version = true;
      return parsed;
    }
    if (!known(argument.name) && !argument.value && absl::StartsWith(argument.name, "no")) {
      const std::string positive = argument.name.substr(absl::StartsWith(argument.name, "no_") ? 3 : 2);
      if (known(positive) && Definition(positive).IsOfType<bool>()) {
        argument.name = positive;
        argument.value = "false";
      }
    }
    if (!known(argument.name)) ThrowUnknownFlag(argument.written, argument.name, names);
    if (!argument.value) {
      if (Definition(argument.name).IsOfType<bool>()) {
        argument.value = "true";
      } else {
        WEFT_REQUIRE(i + 1 < argc, "flag --", argument.name, " needs a value: --", argument.name, "=",
                     Definition(argument.name).DefaultValue());
        argument.value = argv[++i];
      }
    }
    SetFlag(argument.name, *argument.value);
    parsed.given.insert(argument.name);
  }
  return parsed;
}

std::string FlagsHelp(const FlagsUsage& usage) {
  std::string text = absl::StrCat(usage.summary, "\n");
  for (const FlagGroup& group : usage.groups) {
    absl::StrAppend(&text, "\n", group.title, ":\n");
    for (const std::string& name : group.flags) {
      const absl::CommandLineFlag& flag = Definition(name);
      absl::StrAppend(&text, HelpLine(absl::StrCat("--", name, "=", flag.DefaultValue()), flag.Help()));
    }
  }
  absl::StrAppend(&text, "\n", HelpLine("--help", "Print this and exit."),
                  HelpLine("--version", "Print the version and exit."));
  if (!usage.examples.empty()) absl::StrAppend(&text, "\nExamples:\n");
  for (const std::string& example : usage.examples) absl::StrAppend(&text, "  ", example, "\n");
  return text;
}

std::string VersionLine() { return absl::StrCat("weft ", kVersion, "\n"); }

int RunMain(int argc, const char* const* argv, const FlagsUsage& usage,
            const std::function<int(const ParsedFlags&)>& body) {
  try {
    const ParsedFlags parsed = ParseFlags(argc, argv, usage);
    if (!parsed.help && !parsed.version) return body(parsed);
    std::cout << (parsed.help ? FlagsHelp(usage) : VersionLine()) << std::flush;
    return 0;
  } catch (const std::exception& error) {
    WriteErrorFile(error.what());
    return Fail(error.what());
  }
}

int RunMain(int argc, const char* const* argv, const FlagsUsage& usage, const std::function<int()>& body) {
  return RunMain(argc, argv, usage, [&body](const ParsedFlags&) { return body(); });
}

std::string UserPath(absl::string_view path) {
  const std::optional<std::string> folder = BuildWorkingDirectory();
  if (path.empty() || path[0] == '/' || !folder) return std::string(path);
  return (std::filesystem::path(*folder) / std::string(path)).string();
}

}  // namespace weft
