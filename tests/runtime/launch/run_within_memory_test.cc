#include "runtime/launch/run_within_memory.h"

#include <atomic>
#include <new>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/device/out_of_memory.h"
#include "runtime/tensor/tensor.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kCap = 1 << 20;
const WorldOptions kOptions = {.device_options = {.cap_bytes = kCap}};

// Takes `num_bytes` of the rank's allocator for a moment.
void Take(World& world, int64_t num_bytes) { Tensor::Empty(world.allocator(), DType::kU8, {num_bytes}); }

TEST(RunWithinMemoryTest, TheFirstThatFits) {
  std::vector<std::string> called;
  MemorySavings savings = {.names = {"all", "half", "little"},
                           .before_again = [&] { called.push_back("again"); }};
  std::atomic<int> num_bodies = 0;
  testing::internal::CaptureStderr();
  RunWithinMemory(3, savings,
                  [&](World& world, int saving) {
                    ++num_bodies;
                    // One rank needs more than the others, which wait for it.
                    if (world.rank() == 1) Take(world, 4 * kCap >> saving);
                    world.store().Set("there" + std::to_string(world.rank()), "");
                    world.store().Wait({"there0", "there1", "there2"}, std::chrono::seconds(60));
                    if (world.rank() == 0) called.push_back("done " + std::to_string(saving));
                  },
                  {.device_options = {.cap_bytes = 2 * kCap}});
  EXPECT_EQ(called, (std::vector<std::string>{"again", "done 1"}));
  EXPECT_EQ(num_bodies, 6);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("weft: rank 1: out of memory on cpu: cannot allocate 4194304 bytes"),
                    HasSubstr("; going on with half\n")));
}

TEST(RunWithinMemoryTest, WhatSavesMostIsTheLast) {
  const auto body = [](World& world, int) { Take(world, 2 * kCap); };
  testing::internal::CaptureStderr();
  EXPECT_THAT(MessageOf([&] {
                RunWithinMemory(1, {.names = {"all", "half"}}, body, kOptions);
              }),
              AllOf(HasSubstr("rank 0: out of memory on cpu: cannot allocate 2097152 bytes"),
                    HasSubstr("cap 1048576 bytes"), HasSubstr("; half saves most already")));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("going on with half"));
  EXPECT_THAT(MessageOf([&] { RunWithinMemory(1, {.names = {"all"}}, body, kOptions); }),
              testing::Not(HasSubstr("saves most")));
  EXPECT_THAT(MessageOf([&] { RunWithinMemory(1, {}, body, kOptions); }), HasSubstr("at least one way"));
}

TEST(RunWithinMemoryTest, OtherErrorsEndTheRun) {
  int num_bodies = 0;
  const auto body = [&](World&, int) {
    ++num_bodies;
    Throw(absl::StatusCode::kResourceExhausted, "the disk is full");
  };
  EXPECT_EQ(MessageOf([&] {
              RunWithinMemory(1, {.names = {"all", "half"}}, body);
            }),
            "rank 0: the disk is full");
  EXPECT_EQ(num_bodies, 1);
}

TEST(OutOfMemoryTest, IsTold) {
  EXPECT_TRUE(IsOutOfMemory(std::bad_alloc()));
  EXPECT_TRUE(IsOutOfMemory(
      Error(absl::StatusCode::kResourceExhausted, "rank 3: out of memory on cuda: cudaMalloc")));
  EXPECT_FALSE(IsOutOfMemory(Error(absl::StatusCode::kAborted, "rank 3 failed: out of memory on cuda")));
  EXPECT_FALSE(IsOutOfMemory(Error(absl::StatusCode::kResourceExhausted, "cannot start a rank")));
}

}  // namespace
}  // namespace weft
