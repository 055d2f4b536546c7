// Pickles that are refused: corpus/ has one for each reason.

#include <map>
#include <string>

#include "dtensor/checkpoint/dcp/pickle.h"
#include "dtensor/checkpoint/files/files.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/files/refused_corpus.h"

namespace weft {
namespace {

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
  ExpectRefused("tests/dtensor/checkpoint/dcp/corpus", kReasons, [](Files& files, const std::string& path) {
    Pickle(path, ReadText(files, path, 1 << 20), {"torch Size"});
  });
}

}  // namespace
}  // namespace weft
