#include "runtime/data/loader/data_position.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(DataPositionTest, IsAShortText) {
  const DataPosition position = {.samples = 1200, .sampler = "shuffled(9345, seed 1337)"};
  EXPECT_EQ(position.ToJson(), R"json({"samples":1200,"sampler":"shuffled(9345, seed 1337)"})json");
  EXPECT_EQ(DataPosition::FromJson(position.ToJson()), position);
  EXPECT_EQ(DataPosition::FromJson(DataPosition().ToJson()), DataPosition());
}

TEST(DataPositionTest, BrokenTextIsDataLoss) {
  for (const char* text : {"", "{", "[]", "{}", R"({"samples":1})", R"({"samples":"1","sampler":"s"})",
                           R"({"samples":1.5,"sampler":"s"})", R"({"samples":-1,"sampler":"s"})",
                           R"({"samples":1,"sampler":2})"}) {
    try {
      DataPosition::FromJson(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << text;
      EXPECT_THAT(error.message(), testing::StartsWith("data position: ")) << text;
    }
  }
}

}  // namespace
}  // namespace weft
