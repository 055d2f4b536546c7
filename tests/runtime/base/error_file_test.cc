#include "runtime/base/error_file.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

std::string Saying(const std::string& text) {
  const std::string path = testing::TempDir() + "/error.json";
  std::ofstream(path) << text;
  return ReadErrorFile(path);
}

TEST(ErrorFileTest, WhatIsWrittenIsRead) {
  const std::string path = testing::TempDir() + "/written.json";
  setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  WriteErrorFile("rank 1: \"the disk\"\nis full \xff");
  unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_EQ(ReadErrorFile(path), "rank 1: \"the disk\"\nis full \uFFFD");
  // As torch.distributed.elastic.multiprocessing.errors.ErrorHandler lays it out.
  std::ifstream file(path);
  const auto error = nlohmann::json::parse(file);
  EXPECT_TRUE(error.at("message").at("extraInfo").at("timestamp").is_string());
}

TEST(ErrorFileTest, WithoutAFileNothingHappens) {
  unsetenv("TORCHELASTIC_ERROR_FILE");
  WriteErrorFile("nobody listens");
  setenv("TORCHELASTIC_ERROR_FILE", "/nonexistent/error.json", 1);
  WriteErrorFile("nobody listens");
  unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_EQ(ReadErrorFile("/nonexistent/error.json"), "");
}

TEST(ErrorFileTest, WhatOthersWrite) {
  EXPECT_EQ(Saying(R"({"message": "SignalException"})"), "SignalException");
  EXPECT_EQ(Saying(R"({"message": {"message": "why", "extraInfo": {"py_callstack": "x"}}})"), "why");
  for (const char* const broken :
       {"", "{", "[]", "17", R"({"message": 3})", R"({"message": {"message": null}})", R"({})"}) {
    EXPECT_EQ(Saying(broken), "") << broken;
  }
  EXPECT_EQ(Saying("{\"message\": \"" + std::string(10000, 'a') + "\"}").size(), 4096u);
}

}  // namespace
}  // namespace weft
