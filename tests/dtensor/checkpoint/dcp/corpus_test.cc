// Pickles that are refused: corpus/ has one for each reason.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "dtensor/checkpoint/dcp/pickle.h"
#include "dtensor/checkpoint/files/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::HasSubstr;

constexpr char kCorpus[] = "tests/dtensor/checkpoint/dcp/corpus";

const std::map<std::string, std::string> kReasons = {
    {"empty.pickle", "is not a whole pickle: it ends at byte 0"},
    {"protocol.pickle", "protocol 7; expected 2 to 5"},
    {"opcode.pickle", "the pickle has the opcode 0x69 at byte 2"},
    {"class.pickle", "the pickle names 'os system', which is not among the classes that are read"},
    {"takes-too-much.pickle", "it takes more than it has at byte 3"},
    {"behind-a-mark.pickle", "it takes more than it has at byte 6"},
    {"no-mark.pickle", "it has no mark"},
    {"recalls-nothing.pickle", "it recalls what it has not kept"},
    {"key-alone.pickle", "a key without a value"},
    {"another-kind.pickle", "a value is of another kind than is meant"},
    {"class-no-text.pickle", "a class whose name is no text"},
    {"call-of-no-class.pickle", "an object of no class, or whose arguments are no tuple"},
    {"half-a-line.pickle", "it ends within a line"},
    {"long-text.pickle", "it ends at byte 11"},
};

TEST(CorpusTest, EachIsRefusedForItsReason) {
  const std::shared_ptr<Files> files = MakeDiskFiles();
  std::set<std::string> read;
  for (const std::string& name : files->List(kCorpus)) {
    const std::string path = JoinPath(kCorpus, name);
    const auto reason = kReasons.find(name);
    ASSERT_NE(reason, kReasons.end()) << name << ": no reason is known";
    const std::string message =
        MessageOf([&] { Pickle(path, ReadText(*files, path, 1 << 20), {"torch Size"}); });
    EXPECT_THAT(message, HasSubstr(reason->second));
    EXPECT_THAT(message, HasSubstr(path));
    read.insert(name);
  }
  EXPECT_EQ(read.size(), kReasons.size());
}

}  // namespace
}  // namespace weft
