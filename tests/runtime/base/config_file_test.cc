#include "runtime/base/config_file.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/base/flags.h"
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

ABSL_FLAG(std::string, mesh, "dp=2,tp=2", "a text");
ABSL_FLAG(int64_t, layers, 4, "a whole number");
ABSL_FLAG(uint64_t, seed, 1337, "a whole number, not negative");
ABSL_FLAG(double, lr, 1e-3, "a number");
ABSL_FLAG(bool, overlap, true, "a bool");
ABSL_FLAG(std::vector<std::string>, offload, {}, "a list");
ABSL_FLAG(weft::Percent, share, weft::Percent{50}, "its own type");
ABSL_FLAG(int, hidden, 1, "in no group");

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Reads {"other_batch": 8, "unit": 2} as --layers=16.
ForeignConfig Other() {
  return {.name = "Other",
          .keys = {"other_batch", "other_lr"},
          .translate = [](absl::string_view text, const FlagsAround& around) {
            const Json object = Json::parse(text.begin(), text.end());
            if (object.contains("lr_of_mesh"))
              return std::vector<FlagValue>{{"mesh", around.value_of("mesh") + ",x=1"}};
            if (object.contains("share_of_layers")) {
              std::vector<FlagValue> values = {{"share", "%" + around.value_of("layers")}};
              if (!around.is_given("layers")) values.push_back({"layers", "1"});
              return values;
            }
            if (object.contains("default_lr"))
              return std::vector<FlagValue>{{"lr", "0.5", /*is_default=*/true}};
            if (object.contains("wrong_flag")) return std::vector<FlagValue>{{"nothing", "1"}};
            if (object.contains("wrong_value")) return std::vector<FlagValue>{{"layers", "many"}};
            WEFT_REQUIRE(object.contains("unit"), "key \"unit\" is missing");
            const int64_t product =
                object.at("other_batch").get<int64_t>() * object.at("unit").get<int64_t>();
            return std::vector<FlagValue>{{"layers", absl::StrCat(product)}};
          }};
}

FlagsUsage Usage() {
  return {.summary = "Trains.",
          .groups = {{"Mesh and plan", {"mesh", "overlap", "offload"}},
                     {"Training", {"layers", "lr", "seed", "share"}}},
          .examples = {},
          .foreign = {Other()}};
}

class ConfigFileTest : public testing::Test {
 protected:
  ~ConfigFileTest() override { std::remove(path_.c_str()); }

  void Write(const std::string& text) const { std::ofstream(path_) << text; }

  std::set<std::string> Apply(const std::string& text) const {
    Write(text);
    return ApplyConfigFiles({path_}, Usage(), {.value_of = [](absl::string_view) { return "tp=3"; }});
  }

  // Without the file's name.
  std::string ErrorOf(const std::string& text) const {
    const std::string message = InvalidArgumentMessage([&] { Apply(text); });
    const std::string prefix = "--config=" + path_ + ": ";
    return message.rfind(prefix, 0) == 0 ? message.substr(prefix.size()) : message;
  }

  static ParsedFlags ParseLine(std::vector<std::string> arguments) {
    std::vector<const char*> argv = {"train"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return ParseFlags(static_cast<int>(argv.size()), argv.data(), Usage());
  }

  absl::FlagSaver saver_;
  const std::string path_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

TEST_F(ConfigFileTest, KeysAreFlags) {
  EXPECT_THAT(
      Apply(R"({"mesh": "dp=4", "layers": 7, "lr": 0.5, "overlap": false, "seed": 18446744073709551615,
                        "offload": ["state", "parameters"], "share": "%20"})"),
      ElementsAre("layers", "lr", "mesh", "offload", "overlap", "seed", "share"));
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "dp=4");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 7);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.5);
  EXPECT_FALSE(absl::GetFlag(FLAGS_overlap));
  EXPECT_EQ(absl::GetFlag(FLAGS_seed), std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(absl::GetFlag(FLAGS_offload), ElementsAre("state", "parameters"));
  EXPECT_EQ(absl::GetFlag(FLAGS_share).value, 20);
}

TEST_F(ConfigFileTest, NumbersMayBeWrittenInSeveralWays) {
  Apply(R"({"layers": 5e2, "lr": 1})");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 500);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 1);
  Apply(R"({"layers": -3, "lr": 6.25e-5})");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), -3);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 6.25e-5);
}

TEST_F(ConfigFileTest, GroupsAreObjects) {
  Apply(R"({"Training": {"layers": 2, "lr": 0.25}, "mesh_and_plan": {"mesh": ""}, "seed": 5})");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 2);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.25);
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "");
  EXPECT_EQ(absl::GetFlag(FLAGS_seed), 5u);
  EXPECT_EQ(ErrorOf(R"({"Training": {"mesh": "dp=2"}})"),
            "key \"Training.mesh\": --mesh is not of group \"Training\"; write it outside, or in its own");
  EXPECT_EQ(ErrorOf(R"({"Training": {"layer": 2}})"),
            "unknown key \"Training.layer\": did you mean \"layers\"?");
  EXPECT_EQ(ErrorOf(R"({"Trainning": {"layers": 2}})"),
            "unknown key \"Trainning\": did you mean \"Training\"?");
  EXPECT_EQ(ErrorOf(R"({"Training": 3})"), "unknown key \"Training\": did you mean \"Training\"?");
}

TEST_F(ConfigFileTest, AGroupMayHaveTheNameOfAFlag) {
  const FlagsUsage usage = {
      .summary = "Trains.",
      .groups = {{"Mesh", {"mesh", "layers"}}, {"Layers", {"lr"}}},
      .examples = {},
  };
  const auto apply = [&](const std::string& text) {
    Write(text);
    return ApplyConfigFiles({path_}, usage, {});
  };
  EXPECT_THAT(apply(R"({"Mesh": {"mesh": "dp=3", "layers": 5}, "Layers": {"lr": 0.5}})"),
              ElementsAre("layers", "lr", "mesh"));
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "dp=3");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 5);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.5);
  EXPECT_THAT(apply(R"({"mesh": "dp=4", "layers": 6})"), ElementsAre("layers", "mesh"));
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "dp=4");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 6);
  EXPECT_THAT(apply(R"({"Mesh": "dp=5", "mesh": {"layers": 7}})"), ElementsAre("layers", "mesh"));
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "dp=5");
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 7);
}

TEST_F(ConfigFileTest, AnUnknownKeyIsRefusedByTheNearest) {
  EXPECT_EQ(ErrorOf(R"({"layer": 2})"), "unknown key \"layer\": did you mean \"layers\"?");
  EXPECT_EQ(ErrorOf(R"({"zzzzzzzzz": 2})"), "unknown key \"zzzzzzzzz\": --help lists the flags");
  EXPECT_THAT(ErrorOf(R"({"hidden": 2})"), HasSubstr("unknown key \"hidden\""));
  EXPECT_THAT(ErrorOf(R"({"config": "other.json"})"), HasSubstr("unknown key \"config\""));
}

TEST_F(ConfigFileTest, AWrongTypeNamesKeyGivenAndExpected) {
  EXPECT_EQ(ErrorOf(R"({"lr": "fast"})"), "key \"lr\": expected a number, got \"fast\"");
  EXPECT_EQ(ErrorOf(R"({"lr": true})"), "key \"lr\": expected a number, got true");
  EXPECT_EQ(ErrorOf(R"({"layers": 2.5})"), "key \"layers\": expected a whole number, got 2.5");
  EXPECT_EQ(ErrorOf(R"({"layers": "2"})"), "key \"layers\": expected a whole number, got \"2\"");
  EXPECT_EQ(ErrorOf(R"({"layers": 99999999999999999999})"),
            "key \"layers\": expected a whole number, got 1e+20");
  EXPECT_EQ(ErrorOf(R"({"seed": -1})"), "key \"seed\": expected a whole number, not negative, got -1");
  EXPECT_EQ(ErrorOf(R"({"overlap": 1})"), "key \"overlap\": expected true or false, got 1");
  EXPECT_EQ(ErrorOf(R"({"mesh": {"dp": 2}})"), "key \"mesh\": expected a text, got {\"dp\":2}");
  EXPECT_EQ(ErrorOf(R"({"mesh": null})"), "key \"mesh\": expected a text, got null");
  EXPECT_EQ(ErrorOf(R"({"offload": "state"})"),
            "key \"offload\": expected an array of texts without commas, got \"state\"");
  EXPECT_EQ(ErrorOf(R"({"offload": ["a,b"]})"),
            "key \"offload\": expected an array of texts without commas, got [\"a,b\"]");
  EXPECT_EQ(ErrorOf(R"({"share": "20"})"), "key \"share\": expected a % sign and a number, got \"20\"");
  EXPECT_EQ(ErrorOf(R"({"share": [1]})"), "key \"share\": expected a text like \"%50\", got [1]");
}

TEST_F(ConfigFileTest, WhatIsNoSuchFileIsSaidSo) {
  EXPECT_THAT(ErrorOf("{\"lr\": 1,}"), HasSubstr("no JSON: "));
  EXPECT_EQ(ErrorOf("[1]"), "expected an object, got array");
  EXPECT_EQ(ErrorOf(R"({"lr": 1, "layers": 2, "lr": 3})"), "key \"lr\" is given twice");
  EXPECT_EQ(ErrorOf(R"({"lr": 1, "Training": {"lr": 3}})"), "key \"Training.lr\": --lr is given twice");
  EXPECT_THAT(ErrorOf(""), HasSubstr("it is empty"));
  const std::string missing = path_ + ".none";
  EXPECT_EQ(MessageOf([&] { ApplyConfigFiles({missing}, Usage(), {}); }),
            "--config: cannot read '" + missing + "': No such file or directory");
}

TEST_F(ConfigFileTest, TheCommandLineCounts) {
  Write(R"({"layers": 9, "lr": 0.5})");
  for (const bool first : {false, true}) {
    const absl::FlagSaver saver;
    std::vector<std::string> arguments = {"--layers=3"};
    arguments.insert(first ? arguments.begin() : arguments.end(), "--config=" + path_);
    const ParsedFlags parsed = ParseLine(arguments);
    EXPECT_EQ(absl::GetFlag(FLAGS_layers), 3);
    EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.5);
    EXPECT_THAT(parsed.given, ElementsAre("layers", "lr"));
  }
}

TEST_F(ConfigFileTest, OfSeveralFilesTheLastCounts) {
  Write(R"({"layers": 9, "lr": 0.5})");
  const std::string other = path_ + ".2";
  std::ofstream(other) << R"({"layers": 10})";
  ParseLine({"--config", path_, "--config", other});
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 10);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.5);
  std::remove(other.c_str());
}

// It knows what the program's own files say, before it and behind; those behind it count as the command line does.
TEST_F(ConfigFileTest, AFileOfAnotherSystemIsReadBesideTheOthers) {
  const std::string first = path_ + ".1", second = path_ + ".2";
  Write(R"({"other_lr": 8, "share_of_layers": true})");
  std::ofstream(first) << R"({"layers": 5, "seed": 7})";
  std::ofstream(second) << R"({"layers": 6})";
  const auto layers_and_share = [](const std::vector<std::string>& arguments) {
    const absl::FlagSaver saver;
    ParseLine(arguments);
    return std::vector<double>{static_cast<double>(absl::GetFlag(FLAGS_layers)),
                               absl::GetFlag(FLAGS_share).value};
  };
  const std::string other = "--config=" + path_, one = "--config=" + first, two = "--config=" + second;
  EXPECT_THAT(layers_and_share({other}), ElementsAre(1, 4));
  EXPECT_THAT(layers_and_share({one, other}), ElementsAre(1, 5));
  EXPECT_THAT(layers_and_share({other, one}), ElementsAre(5, 5));
  EXPECT_THAT(layers_and_share({one, other, two}), ElementsAre(6, 6));
  EXPECT_THAT(layers_and_share({other, two, one}), ElementsAre(5, 5));
  EXPECT_THAT(layers_and_share({other, one, "--layers=9"}), ElementsAre(9, 9));
  EXPECT_THAT(ParseLine({other, one}).given, ElementsAre("layers", "seed", "share"));
  std::remove(first.c_str());
  std::remove(second.c_str());
}

// It holds where nothing else is said, and gives no flag.
TEST_F(ConfigFileTest, WhatAFileOfAnotherSystemDoesNotSayIsItsDefault) {
  const std::string other = path_ + ".other";
  std::ofstream(other) << R"({"other_lr": 1, "default_lr": true})";
  Write(R"({"lr": 0.25})");
  EXPECT_FALSE(ParseLine({"--config=" + other}).Given("lr"));
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.5);
  for (const auto& [first, second] : {std::pair(path_, other), std::pair(other, path_)}) {
    EXPECT_TRUE(ParseLine({"--config=" + first, "--config=" + second}).Given("lr"));
    EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.25);
  }
  ParseLine({"--lr=2", "--config=" + other});
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 2);
  std::remove(other.c_str());
}

TEST_F(ConfigFileTest, TheEffectiveConfigurationIsSuchAFile) {
  const ParsedFlags parsed = ParseLine({"--layers=3", "--lr=0.1", "--offload=state,activations",
                                        "--nooverlap", "--share=%7", "--print_config"});
  EXPECT_TRUE(parsed.print_config);
  EXPECT_FALSE(parsed.Given("print_config"));
  const std::string config = EffectiveConfig(Usage());
  EXPECT_EQ(config, R"({
  "mesh": "dp=2,tp=2",
  "overlap": false,
  "offload": [
    "state",
    "activations"
  ],
  "layers": 3,
  "lr": 0.1,
  "seed": 1337,
  "share": "%7"
}
)");
  {
    const absl::FlagSaver saver;
    ParseLine({"--layers=8", "--lr=2", "--offload=", "--overlap", "--share=%1"});
    Apply(config);
    EXPECT_EQ(EffectiveConfig(Usage()), config);
  }
  // Every bit of a number survives, and what JSON does not have.
  for (const double lr :
       {0.1 + 0.2, 5e-324, 1.7976931348623157e308, std::numeric_limits<double>::infinity()}) {
    absl::SetFlag(&FLAGS_lr, lr);
    const std::string text = EffectiveConfig(Usage());
    absl::SetFlag(&FLAGS_lr, 0);
    Apply(text);
    EXPECT_EQ(absl::GetFlag(FLAGS_lr), lr);
  }
}

TEST_F(ConfigFileTest, AFileOfAnotherSystemIsItsOwn) {
  EXPECT_THAT(Apply(R"({"other_batch": 8, "unit": 2})"), ElementsAre("layers"));
  EXPECT_EQ(absl::GetFlag(FLAGS_layers), 16);
  EXPECT_EQ(ErrorOf(R"({"other_batch": 8})"), "Other: key \"unit\" is missing");
  Apply(R"({"other_lr": 8, "lr_of_mesh": 2})");
  EXPECT_EQ(absl::GetFlag(FLAGS_mesh), "tp=3,x=1") << "it knows what the command line says";
  EXPECT_EQ(ErrorOf(R"({"other_lr": 8, "wrong_flag": 2})"),
            "Other says --nothing=1, a flag that this program does not have");
  EXPECT_EQ(ErrorOf(R"({"other_lr": 8, "wrong_value": 2})"),
            "Other says --layers=many: expected a whole number");
}

}  // namespace
}  // namespace weft
