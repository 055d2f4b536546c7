#include "benchmarks/train_row.h"

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(TrainRowTest, ThreadsAreDividedAmongRanks) {
  struct Case {
    std::string parallel;
    int ranks;
    int threads;
    int per_rank;
    int cores_of_8;
    int cores_of_2;
  };
  for (const Case& c : std::vector<Case>{
           {"none", 2, 2, 2, 2, 2},  // one rank, whatever --ranks says
           {"none", 4, 1, 1, 1, 1},
           {"ddp", 2, 2, 1, 2, 2},
           {"ddp", 2, 4, 2, 4, 2},
           {"fsdp", 2, 3, 1, 2, 2},  // the third is nobody's
           {"tp", 2, 1, 1, 2, 2},    // a rank is a thread
           {"ddp", 4, 2, 1, 4, 2},
           {"ddp", 16, 2, 1, 8, 2},
       }) {
    const TrainRow row = {.parallel = c.parallel, .ranks = c.ranks, .threads = c.threads};
    EXPECT_EQ(row.threads_per_rank(), c.per_rank) << c.parallel << " " << c.ranks << " " << c.threads;
    EXPECT_EQ(row.num_cores(8), c.cores_of_8) << c.parallel << " " << c.ranks << " " << c.threads;
    EXPECT_EQ(row.num_cores(2), c.cores_of_2) << c.parallel << " " << c.ranks << " " << c.threads;
  }
}

TEST(TrainRowTest, RowsOfTheTableUseTwoCores) {
  for (const TrainRow& row : AllTrainRows()) {
    EXPECT_EQ(row.num_cores(64), 2) << row.Name();
    EXPECT_EQ(row.threads_per_rank(), row.parallel == "none" ? 2 : 1) << row.Name();
  }
}

TEST(TrainRowTest, Misuse) {
  EXPECT_EQ(InvalidArgumentMessage([] { TrainRow{.threads = 0}.threads_per_rank(); }),
            "--threads=0: expected 1 or more");
  EXPECT_EQ(InvalidArgumentMessage([] { TrainRow{.parallel = "ddp", .ranks = 0}.threads_per_rank(); }),
            "--ranks=0: expected 1 or more");
}

}  // namespace
}  // namespace weft
