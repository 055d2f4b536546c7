#include "runtime/launch/snapshot_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

// Rank 5 of three nodes of two.
Variables RankFive() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "6"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29500"}};
}

TEST(SnapshotMemoryTest, IsTheAgentsFiles) {
  Variables variables = RankFive();
  EXPECT_EQ(ParseSnapshotMemory(variables), std::nullopt);
  variables["WEFT_SNAPSHOT_MEMORY"] = "";
  EXPECT_EQ(ParseSnapshotMemory(variables), std::nullopt);
  variables["WEFT_SNAPSHOT_MEMORY"] = "4711:7,8,9,10,11,12,13,20";
  const std::string folder = "/proc/4711/fd/";
  EXPECT_EQ(ParseSnapshotMemory(variables),
            (SnapshotMemory{.paths = {folder + "7", folder + "8", folder + "9", folder + "10", folder + "11",
                                      folder + "12", folder + "13", folder + "20"},
                            .node = 2,
                            .local_rank = 1,
                            .local_size = 2}));
}

TEST(SnapshotMemoryTest, SaysWhatIsWrong) {
  Variables variables = RankFive();
  for (const char* const text :
       {"4711", "4711:1,2,3", "x:1,2,3,4,5,6,7,8", "4711:1,2,3,4,5,6,7,8,9", "4711:1,2,3,4,5,6,7,",
        "4711:1,2,3,4,5,6,7,-8", "0:1,2,3,4,5,6,7,8", "../1:1,2,3,4,5,6,7,8"}) {
    variables["WEFT_SNAPSHOT_MEMORY"] = text;
    EXPECT_EQ(InvalidArgumentMessage([&] { ParseSnapshotMemory(variables); }),
              std::string("environment: WEFT_SNAPSHOT_MEMORY is '") + text +
                  "', expected PID:FD,FD,... with 4 open files for each of 2 local ranks");
  }
  // Without a launcher nobody has said which rank this is.
  EXPECT_EQ(ParseSnapshotMemory({{"WEFT_SNAPSHOT_MEMORY", "4711:1,2,3,4"}}), std::nullopt);
}

}  // namespace
}  // namespace weft
