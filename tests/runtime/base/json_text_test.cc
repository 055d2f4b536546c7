#include "runtime/base/json_text.h"

#include <limits>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(JsonTextTest, WhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(JsonText(nlohmann::json("gr\xfc\xdf")), "\"gr\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(JsonText(nlohmann::json("gr\xc3\xbc\xc3\x9f")), "\"gr\xc3\xbc\xc3\x9f\"");
  EXPECT_EQ(JsonText(nlohmann::ordered_json{{"b\xff", 1}, {"a", "\xc3"}}),
            "{\"b\xef\xbf\xbd\":1,\"a\":\"\xef\xbf\xbd\"}");
}

TEST(JsonTextTest, IsOnOneLineUnlessIndented) {
  const nlohmann::json json = {{"x", {1, 2}}, {"y", "two\nlines"}};
  EXPECT_EQ(JsonText(json), R"({"x":[1,2],"y":"two\nlines"})");
  EXPECT_EQ(JsonText(json, 1), "{\n \"x\": [\n  1,\n  2\n ],\n \"y\": \"two\\nlines\"\n}");
  EXPECT_EQ(JsonText(nlohmann::json(std::numeric_limits<double>::infinity())), "null");
}

}  // namespace
}  // namespace weft
