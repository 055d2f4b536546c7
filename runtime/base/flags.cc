#include "runtime/base/flags.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
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
#include "runtime/base/config_file.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/error_file.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/version.h"

namespace weft {
namespace {

constexpr size_t kHelpColumn = 30;
constexpr size_t kHelpWidth = 110;

// What every program has beside its own flags.
bool IsBuiltIn(absl::string_view name) { return name == "config" || name == "print_config"; }

[[noreturn]] void ThrowUnknownFlag(const std::string& written, const std::string& name,
                                   std::vector<std::string> candidates) {
  candidates.insert(candidates.end(), {"help", "version", "config", "print_config"});
  const std::optional<std::string> meant = MeantName(name, candidates);
  if (!meant) ThrowInvalidArgument("unknown flag --", written, ": --help lists the flags");
  ThrowInvalidArgument("unknown flag --", written, ": did you mean --", *meant, "?");
}

void SetFlag(const std::string& name, absl::string_view value) {
  const std::optional<std::string> expected = TrySetFlag(name, value);
  if (expected) ThrowInvalidArgument("flag --", name, ": cannot read \"", value, "\": expected ", *expected);
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

bool Contains(const std::vector<std::string>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// --config, unless the program has a flag of its own that is called so.
bool IsFileFlag(absl::string_view name, const std::vector<std::string>& names) {
  return name == "config" && !Contains(names, name);
}

// The default of a flag in one line.
std::string DefaultOf(const std::string& name) {
  return absl::StrReplaceAll(FlagNamed(name).DefaultValue(), {{"\n", "\\n"}, {"\r", "\\r"}, {"\t", "\\t"}});
}

// A value to show what one looks like.
std::string ExampleOf(const std::string& name, const std::vector<std::string>& names) {
  if (IsFileFlag(name, names)) return "run.json";
  const std::string value = DefaultOf(name);
  return value.empty() ? "VALUE" : value;
}

// The flags as they are written, up to --help or --version, which it notes, as it does --print_config.
std::vector<FlagValue> ReadArguments(int argc, const char* const* argv, const std::vector<std::string>& names,
                                     ParsedFlags* parsed) {
  const auto is_bool = [&](const std::string& name) {
    return Contains(names, name) ? FlagNamed(name).IsOfType<bool>() : name == "print_config";
  };
  std::vector<FlagValue> arguments;
  for (int i = 1; i < argc; ++i) {
    Argument argument = SplitArgument(argv[i]);
    parsed->help = argument.name == "help" || argument.name == "h";
    parsed->version = argument.name == "version";
    if (parsed->help || parsed->version) return arguments;
    const auto known = [&](const std::string& name) { return Contains(names, name) || IsBuiltIn(name); };
    if (!known(argument.name) && !argument.value && absl::StartsWith(argument.name, "no")) {
      const std::string positive = argument.name.substr(absl::StartsWith(argument.name, "no_") ? 3 : 2);
      if (known(positive) && is_bool(positive)) {
        argument.name = positive;
        argument.value = "false";
      }
    }
    if (!known(argument.name)) ThrowUnknownFlag(argument.written, argument.name, names);
    if (!argument.value) {
      if (is_bool(argument.name)) {
        argument.value = "true";
      } else {
        WEFT_REQUIRE(i + 1 < argc, "flag --", argument.name, " needs a value: --", argument.name, "=",
                     ExampleOf(argument.name, names));
        argument.value = argv[++i];
      }
    }
    if (argument.name == "print_config" && !Contains(names, argument.name)) {
      WEFT_REQUIRE(*argument.value == "true" || *argument.value == "false",
                   "flag --print_config: cannot read \"", *argument.value, "\": expected true or false");
      parsed->print_config = *argument.value == "true";
    } else {
      arguments.push_back({.flag = argument.name, .value = *argument.value});
    }
  }
  return arguments;
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

// What was printed and is still on its way goes out here, and streams keep that something was lost before, though not why.
// Errors: ResourceExhausted if not all of it came to where stdout leads, such as a file on a full disk.
void RequireStdoutIsWritten() {
  const bool is_flushed = std::fflush(stdout) == 0;
  const int error = errno;
  std::cout.flush();
  if (is_flushed && std::ferror(stdout) == 0 && !std::cout.fail()) return;
  Throw(absl::StatusCode::kResourceExhausted,
        "cannot write stdout: ", is_flushed ? "some of what was printed is lost" : std::strerror(error));
}

}  // namespace

ParsedFlags ParseFlags(int argc, const char* const* argv, const FlagsUsage& usage) {
  const std::vector<std::string> names = FlagNames(usage);
  ParsedFlags parsed;
  const std::vector<FlagValue> arguments = ReadArguments(argc, argv, names, &parsed);
  if (parsed.help || parsed.version) return parsed;
  const auto last_of = [&](absl::string_view name) {
    return std::find_if(arguments.rbegin(), arguments.rend(),
                        [&](const FlagValue& given) { return given.flag == name; });
  };
  const FlagsAround around = {
      .value_of =
          [&](absl::string_view name) {
            const auto given = last_of(name);
            return given != arguments.rend() ? given->value : FlagNamed(name).CurrentValue();
          },
      .is_given = [&](absl::string_view name) { return last_of(name) != arguments.rend(); },
  };
  std::vector<std::string> files;
  for (const FlagValue& given : arguments) {
    if (IsFileFlag(given.flag, names)) files.push_back(UserPath(given.value));
  }
  parsed.given = ApplyConfigFiles(files, usage, around);
  for (const FlagValue& given : arguments) {
    if (IsFileFlag(given.flag, names)) continue;
    SetFlag(given.flag, given.value);
    parsed.given.insert(given.flag);
  }
  return parsed;
}

std::string FlagsHelp(const FlagsUsage& usage) {
  std::string text = absl::StrCat(usage.summary, "\n");
  for (const FlagGroup& group : usage.groups) {
    absl::StrAppend(&text, "\n", group.title, ":\n");
    for (const std::string& name : group.flags) {
      absl::StrAppend(&text,
                      HelpLine(absl::StrCat("--", name, "=", DefaultOf(name)), FlagNamed(name).Help()));
    }
  }
  absl::StrAppend(
      &text, "\n", HelpLine("--config=FILE", "Read flags from a JSON file; those given here count."),
      HelpLine("--print_config", "Print all flags as such a file and exit."),
      HelpLine("--help", "Print this and exit."), HelpLine("--version", "Print the version and exit."));
  if (!usage.examples.empty()) absl::StrAppend(&text, "\nExamples:\n");
  for (const std::string& example : usage.examples) absl::StrAppend(&text, "  ", example, "\n");
  return text;
}

std::string VersionLine() { return absl::StrCat("weft ", kVersion, "\n"); }

int RunMain(int argc, const char* const* argv, const FlagsUsage& usage,
            const std::function<int(const ParsedFlags&)>& body) {
  try {
    const ParsedFlags parsed = ParseFlags(argc, argv, usage);
    int code = 0;
    if (parsed.help || parsed.version || parsed.print_config) {
      std::cout << (parsed.help ? FlagsHelp(usage) : parsed.version ? VersionLine() : EffectiveConfig(usage));
    } else {
      code = body(parsed);
    }
    if (code == 0) RequireStdoutIsWritten();
    return code;
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
