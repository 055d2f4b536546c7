// The whole product of which data_parallel_test takes a cover: every plan of data parallelism on every mesh that it fits,
// in one part and in three, under both optimizers. Seconds on an idle machine.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"

namespace weft {
namespace {

std::vector<DataCase> Product() {
  std::vector<DataCase> cases;
  const auto add = [&](const std::vector<std::string>& plans, const std::vector<std::string>& meshes) {
    for (const std::string& plan : plans) {
      for (const std::string& mesh : meshes) {
        for (const int64_t microbatches : {1, 3}) {
          for (const auto optimizer : {TrainingRun::Optimizer::kSgd, TrainingRun::Optimizer::kAdamW}) {
            for (const int64_t batch : {4, 5}) cases.push_back({plan, mesh, microbatches, optimizer, batch});
          }
        }
      }
    }
  };
  add({"ddp", "zero1", "zero2", "fsdp", "fsdp_never"}, {"dp=2", "dp=3", "dp=4", "dp=2,tp=2"});
  add({"fsdp_rest"}, {"dp=4", "dp=4,tp=2"});
  add({"hsdp"}, {"replica=2,shard=2", "replica=2,shard=3", "replica=2,shard=2,tp=2"});
  return cases;
}

class DataParallelProductTest : public testing::TestWithParam<DataCase> {};

TEST_P(DataParallelProductTest, EqualsOneRank) {
  const std::vector<std::string> differences = DifferencesFromOneRank(GetParam());
  EXPECT_TRUE(differences.empty()) << GetParam() << ": " << differences.size() << " differences:\n"
                                   << absl::StrJoin(differences, "\n");
}

INSTANTIATE_TEST_SUITE_P(Full, DataParallelProductTest, testing::ValuesIn(Product()), [](const auto& info) {
  const DataCase& c = info.param;
  const std::string mesh = absl::StrReplaceAll(c.mesh, {{"=", ""}, {",", "_"}});
  return absl::StrCat(c.plan, "_", mesh, "_", c.microbatches,
                      c.optimizer == TrainingRun::Optimizer::kSgd ? "_sgd_" : "_adamw_", c.batch);
});

}  // namespace
}  // namespace weft
