#include "runtime/base/flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/base/version.h"
#include "tests/message_of.h"

namespace weft {

// A flag type that explains its own syntax.
struct Percent {
  double value = 0;
};

bool AbslParseFlag(absl::string_view text, Percent* percent, std::string* error) {
  if (absl::ConsumePrefix(&text, "%") && absl::SimpleAtod(text, &percent->value)) return true;
  *error = "a % sign and a number";
  return false;
}

std::string AbslUnparseFlag(Percent percent) { return absl::StrCat("%", percent.value); }

}  // namespace weft

ABSL_FLAG(std::string, mesh, "dp=2,tp=2", "Axes and extents of the mesh; empty: one rank.");
ABSL_FLAG(int64_t, layers, 4, "Transformer blocks.");
ABSL_FLAG(int, log_every, 10, "Steps between two progress lines.");
ABSL_FLAG(double, lr, 1e-3, "Peak learning rate.");
ABSL_FLAG(
    bool, sequence_parallel, false,
    "Shard activations over the sequence between the sharded products, which saves memory at the price of no "
    "further communication.");
ABSL_FLAG(weft::Percent, share, weft::Percent{50}, "Share of the machine.");
ABSL_FLAG(uint64_t, seed, 1337, "Seed of everything random.");
ABSL_FLAG(int, hidden, 1, "In no group.");
ABSL_FLAG(std::string, text, "", "Of a group of its own test.");
ABSL_FLAG(std::string, prompt, "\n", "Likewise.");

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

FlagsUsage Usage() {
  FlagsUsage usage;
  usage.summary = "Trains a model.";
  usage.groups = {{"Mesh", {"mesh", "sequence_parallel"}},
                  {"Model", {"layers", "lr", "share", "seed"}},
                  {"Output", {"log_every"}}};
  usage.examples = {"train --mesh=dp=4", "train --layers=8"};
  return usage;
}

class FlagsTest : public testing::Test {
 protected:
  static ParsedFlags Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train");
    return ParseFlags(static_cast<int>(arguments.size()), arguments.data(), Usage());
  }

  static std::string ParseError(std::vector<const char*> arguments) {
    try {
      Parse(std::move(arguments));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      return error.message();
    }
    return "no error";
  }

  absl::FlagSaver saver_;
};

TEST_F(FlagsTest, EveryFormOfWritingSetsTheFlag) {
  const ParsedFlags parsed = Parse({"--mesh=dp=4", "--layers", "7", "-lr=0.5", "--sequence_parallel"});
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "dp=4");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 7);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.5);
  EXPECT_TRUE(absl::GetFlag(FLAGS_sequence_parallel));
  EXPECT_FALSE(parsed.help);
  EXPECT_THAT(parsed.given, ElementsAre("layers", "lr", "mesh", "sequence_parallel"));
}

TEST_F(FlagsTest, DashesAreUnderscores) {
  EXPECT_TRUE(Parse({"--log-every=3", "--sequence-parallel=true"}).Given("log_every"));
  EXPECT_EQ(absl::GetFlag(FLAGS_log_every), 3);
  EXPECT_TRUE(absl::GetFlag(FLAGS_sequence_parallel));
}

TEST_F(FlagsTest, BoolsCanBeNegated) {
  Parse({"--sequence_parallel", "--nosequence_parallel"});
  EXPECT_FALSE(absl::GetFlag(FLAGS_sequence_parallel));
  Parse({"--sequence_parallel", "--no-sequence-parallel"});
  EXPECT_FALSE(absl::GetFlag(FLAGS_sequence_parallel));
  EXPECT_EQ(ParseError({"--nolayers"}), "unknown flag --nolayers: did you mean --layers?");
}

TEST_F(FlagsTest, AnEmptyValueIsAValue) {
  Parse({"--mesh="});
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "");
}

TEST_F(FlagsTest, GivenAtItsDefaultIsStillGiven) {
  EXPECT_TRUE(Parse({"--layers=4"}).Given("layers"));
  EXPECT_FALSE(Parse({}).Given("layers"));
}

TEST_F(FlagsTest, ValuesMayBeginWithADash) {
  Parse({"--layers", "-3"});
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), -3);
}

TEST_F(FlagsTest, TheLastValueCounts) {
  Parse({"--layers=1", "--layers=2"});
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 2);
}

TEST_F(FlagsTest, AnUnknownFlagNamesTheNearest) {
  EXPECT_EQ(ParseError({"--mehs=dp=2"}), "unknown flag --mehs: did you mean --mesh?");
  EXPECT_EQ(ParseError({"--log-evry=2"}), "unknown flag --log-evry: did you mean --log_every?");
  EXPECT_EQ(ParseError({"--hepl"}), "unknown flag --hepl: did you mean --help?");
  EXPECT_EQ(ParseError({"--zzzzzzzz"}), "unknown flag --zzzzzzzz: --help lists the flags");
}

TEST_F(FlagsTest, AFlagOfNoGroupIsUnknown) {
  EXPECT_EQ(ParseError({"--hidden=2"}), "unknown flag --hidden: --help lists the flags");
}

TEST_F(FlagsTest, ABadValueNamesFlagValueAndWhatWasExpected) {
  EXPECT_EQ(ParseError({"--layers=four"}), "flag --layers: cannot read \"four\": expected a whole number");
  EXPECT_EQ(ParseError({"--layers=4.5"}), "flag --layers: cannot read \"4.5\": expected a whole number");
  EXPECT_EQ(ParseError({"--seed=-1"}),
            "flag --seed: cannot read \"-1\": expected a whole number, not negative");
  EXPECT_EQ(ParseError({"--lr=fast"}), "flag --lr: cannot read \"fast\": expected a number");
  EXPECT_EQ(ParseError({"--sequence_parallel=maybe"}),
            "flag --sequence_parallel: cannot read \"maybe\": expected true or false");
  EXPECT_EQ(ParseError({"--share=3"}), "flag --share: cannot read \"3\": expected a % sign and a number");
}

TEST_F(FlagsTest, AMissingValueIsAnError) {
  EXPECT_EQ(ParseError({"--layers"}), "flag --layers needs a value: --layers=4");
}

TEST_F(FlagsTest, StrayArgumentsAreErrors) {
  EXPECT_EQ(ParseError({"train.txt"}), "unexpected argument \"train.txt\": flags are written --name=value");
  EXPECT_EQ(ParseError({"--sequence_parallel", "true"}),
            "unexpected argument \"true\": flags are written --name=value");
  EXPECT_EQ(ParseError({"--", "x"}), "unexpected argument \"--\": flags are written --name=value");
  EXPECT_EQ(ParseError({"-"}), "unexpected argument \"-\": flags are written --name=value");
  EXPECT_EQ(ParseError({""}), "unexpected argument \"\": flags are written --name=value");
}

TEST_F(FlagsTest, HelpListsGroupsDefaultsAndExamplesInOrder) {
  Parse({"--layers=9"});  // help shows defaults, not values
  const std::string help = FlagsHelp(Usage());
  size_t at = 0;
  for (const char* part :
       {"Trains a model.\n", "\nMesh:\n", "--mesh=dp=2,tp=2", "Axes and extents", "one rank.\n",
        "--sequence_parallel=false", "\nModel:\n", "--layers=4", "Transformer blocks.\n", "--lr=0.001",
        "--share=%50", "\nOutput:\n", "--log_every=10", "--help", "--version", "\nExamples:\n",
        "  train --mesh=dp=4\n", "  train --layers=8\n"}) {
    const size_t found = help.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " not in order in\n" << help;
    at = found;
  }
  EXPECT_THAT(help, Not(HasSubstr("hidden")));
  for (absl::string_view rest = help; !rest.empty();) {
    const size_t end = rest.find('\n');
    EXPECT_LE(end, 110u) << rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
}

// What a default would not show, or would break a line with.
TEST_F(FlagsTest, DefaultsThatAreEmptyOrANewLine) {
  const FlagsUsage usage = {.summary = "Writes.", .groups = {{"Text", {"text", "prompt"}}}, .examples = {}};
  const auto error = [&](const char* argument) {
    const char* const argv[] = {"write", argument};
    return InvalidArgumentMessage([&] { ParseFlags(2, argv, usage); });
  };
  EXPECT_EQ(error("--text"), "flag --text needs a value: --text=VALUE");
  EXPECT_EQ(error("--prompt"), "flag --prompt needs a value: --prompt=\\n");
  EXPECT_THAT(FlagsHelp(usage), HasSubstr("\n  --prompt=\\n                 Likewise.\n"));
}

TEST_F(FlagsTest, AUsageThatListsAFlagWithoutDefinitionIsADefect) {
  FlagsUsage usage = Usage();
  usage.groups.push_back({"More", {"not_defined"}});
  EXPECT_THROW(FlagsHelp(usage), Error);
}

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
  bool ran = false;
};

Outcome RunProgram(std::vector<const char*> arguments, const std::function<int()>& body) {
  arguments.insert(arguments.begin(), "train");
  Outcome outcome;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  outcome.code = RunMain(static_cast<int>(arguments.size()), arguments.data(), Usage(), [&] {
    outcome.ran = true;
    return body();
  });
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST_F(FlagsTest, RunMainReturnsWhatTheBodyReturns) {
  const Outcome outcome =
      RunProgram({"--layers=2"}, [] { return static_cast<int>(absl::GetFlag(FLAGS_layers)); });
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(FlagsTest, RunMainPassesWhatWasGiven) {
  const char* const arguments[] = {"train", "--lr=1"};
  const int code =
      RunMain(2, arguments, Usage(), [](const ParsedFlags& flags) { return flags.Given("lr") ? 5 : 6; });
  EXPECT_EQ(code, 5);
}

TEST_F(FlagsTest, RunMainPrintsHelpAndDoesNotRun) {
  const Outcome outcome = RunProgram({"--help"}, [] { return 3; });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, FlagsHelp(Usage()));
  EXPECT_EQ(outcome.err, "");
  EXPECT_FALSE(outcome.ran);
}

TEST_F(FlagsTest, RunMainPrintsTheVersionAndDoesNotRun) {
  const Outcome outcome = RunProgram({"--version", "--layers=none"}, [] { return 3; });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, absl::StrCat("weft ", kVersion, "\n"));
  EXPECT_EQ(outcome.err, "");
  EXPECT_FALSE(outcome.ran);
  EXPECT_EQ(ParseError({"--verison"}), "unknown flag --verison: did you mean --version?");
}

TEST_F(FlagsTest, RunMainFoldsAnErrorIntoOneLine) {
  const Outcome outcome =
      RunProgram({}, []() -> int { ThrowInvalidArgument("matmul:\n  k differs\n\n  2 and 3\n"); });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "error: matmul: k differs 2 and 3\n");
}

TEST_F(FlagsTest, RunMainReportsOtherExceptionsAndBadFlags) {
  EXPECT_EQ(RunProgram({}, []() -> int { throw std::runtime_error("disk full"); }).err, "error: disk full\n");
  const Outcome outcome = RunProgram({"--layer=4"}, [] { return 0; });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "error: unknown flag --layer: did you mean --layers?\n");
  EXPECT_FALSE(outcome.ran);
}

// What RunMain gives where stdout is a full disk, and what it says on stderr.
Outcome RunOnAFullDisk(std::vector<const char*> arguments, const std::function<int()>& body) {
  std::fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_TRUE(before >= 0 && full >= 0 && dup2(full, STDOUT_FILENO) == STDOUT_FILENO);
  close(full);
  testing::internal::CaptureStderr();
  arguments.insert(arguments.begin(), "train");
  Outcome outcome;
  outcome.code = RunMain(static_cast<int>(arguments.size()), arguments.data(), Usage(), body);
  outcome.err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(dup2(before, STDOUT_FILENO), STDOUT_FILENO);
  close(before);
  std::clearerr(stdout);
  std::cout.clear();
  return outcome;
}

// `train > log` on a full disk has lost its output, and must not look as if all were well.
TEST_F(FlagsTest, RunMainReportsAStdoutThatCannotBeWritten) {
  const auto print = [](bool flushes, int code) {
    return [=] {
      std::printf("step 1");
      if (flushes) std::fflush(stdout);
      return code;
    };
  };
  const Outcome at_the_end = RunOnAFullDisk({}, print(/*flushes=*/false, 0));
  EXPECT_EQ(at_the_end.code, 1);
  EXPECT_EQ(at_the_end.err, "error: cannot write stdout: No space left on device\n");
  const Outcome before = RunOnAFullDisk({}, print(/*flushes=*/true, 0));
  EXPECT_EQ(before.code, 1);
  EXPECT_EQ(before.err, "error: cannot write stdout: some of what was printed is lost\n");
  for (const char* const flag : {"--help", "--version", "--print_config"}) {
    const Outcome of_flag = RunOnAFullDisk({flag}, [] { return 0; });
    EXPECT_EQ(of_flag.code, 1) << flag;
    EXPECT_THAT(of_flag.err, HasSubstr("error: cannot write stdout: ")) << flag;
  }
  // A code says more; and who prints nothing loses nothing.
  EXPECT_EQ(RunOnAFullDisk({}, print(/*flushes=*/false, 143)).code, 143);
  const Outcome silent = RunOnAFullDisk({}, [] { return 0; });
  EXPECT_EQ(silent.code, 0);
  EXPECT_EQ(silent.err, "");
}

TEST(UserPathTest, RelativePathsAreTakenFromWhereTheUserStands) {
  ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", "/home/ada", 1), 0);
  EXPECT_EQ(UserPath("run/model.st"), "/home/ada/run/model.st");
  EXPECT_EQ(UserPath("/tmp/x"), "/tmp/x");
  EXPECT_EQ(UserPath(""), "");
  ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
  EXPECT_EQ(UserPath("run/model.st"), "run/model.st");
}

}  // namespace
}  // namespace weft
