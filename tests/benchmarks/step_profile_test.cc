#include "benchmarks/step_profile.h"

#include <cmath>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1000;

ProfileLine Line(const char* name, double microseconds, int64_t num_calls) {
  return {.name = name, .seconds = microseconds * 1e-6, .num_calls = num_calls};
}

MATCHER_P(IsLine, expected, "") {
  return arg.name == expected.name && arg.num_calls == expected.num_calls &&
         std::abs(arg.seconds - expected.seconds) < 1e-12;
}

// A trace also holds the names of ranks and lanes, which have no time.
TEST(StepProfileTest, SpansOfRankZeroAreAddedUpByNameInnerOnesApart) {
  Tracer tracer;
  tracer.NameLane(1, "grad");
  const auto add = [&](const char* category, const char* name, int64_t begin, int64_t end, int lane = 0) {
    tracer.Add(/*rank=*/0, category, name, begin * kMicrosecond, end * kMicrosecond, lane);
  };
  add("op", "contract", 0, 90);  // before what is asked for
  add("op", "contract", 100, 140);
  add("op", "contract", 200, 230);
  add("op", "softmax", 300, 400);
  add("comm", "all_reduce", 310, 390);
  add("comm", "all_gather", 100, 900, /*lane=*/1);
  EXPECT_THAT(ProfileOf(tracer, 100 * kMicrosecond),
              testing::ElementsAre(IsLine(Line("comm all_reduce", 80, 1)), IsLine(Line("contract", 70, 2)),
                                   IsLine(Line("softmax", 20, 1))));
}

}  // namespace
}  // namespace weft
