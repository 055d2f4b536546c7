#include "examples/gpt/gpt_progress.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// A run of 1000 steps that goes on behind step 900: the time left follows from the steps that were told, of 2 s and then 4 s.
TEST(GptProgressTest, TheTimeLeftIsOfTheStepsThatWereTold) {
  GptRun run;
  run.steps = 1000;
  run.log_every = 1;
  testing::internal::CaptureStdout();
  GptProgress progress(run);
  progress.Step({.step = 901, .step_ms = 2000});
  const std::string first = testing::internal::GetCapturedStdout();
  testing::internal::CaptureStdout();
  progress.Step({.step = 902, .step_ms = 4000});
  const std::string second = testing::internal::GetCapturedStdout();
  EXPECT_THAT(first, HasSubstr("step 901/1000 "));
  EXPECT_THAT(first, HasSubstr(" 3m18s left\n"));   // 99 x 2 s
  EXPECT_THAT(second, HasSubstr(" 4m54s left\n"));  // 98 x 3 s
}

// One of several meshes may have no use for a flag that was given.
TEST(GptProgressTest, TheHeaderTellsOfFlagsWithoutUse) {
  GptRun run;
  run.unused_flags = {"--schedule: the mesh (dp=2) has no axis pp"};
  testing::internal::CaptureStdout();
  GptProgress(run).Header(/*num_parameters=*/1, "book.txt", /*num_tokens=*/2, "plan");
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("\nunused      --schedule: the mesh (dp=2) has no axis pp\n"));
}

}  // namespace
}  // namespace weft
