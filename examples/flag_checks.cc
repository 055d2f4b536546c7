#include "examples/flag_checks.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {

int64_t AtLeast(int64_t minimum, absl::string_view flag, int64_t value) {
  WEFT_REQUIRE(value >= minimum, "--", flag, "=", value, ": expected ", minimum, " or more");
  return value;
}

int IntAtLeast(int minimum, absl::string_view flag, int64_t value) {
  constexpr int kMost = std::numeric_limits<int>::max();
  WEFT_REQUIRE(AtLeast(minimum, flag, value) <= kMost, "--", flag, "=", value, ": expected ", minimum, " to ",
               kMost);
  return static_cast<int>(value);
}

double InRange(double low, double high, absl::string_view flag, double value) {
  WEFT_REQUIRE(value >= low && value < high, "--", flag, "=", value, ": expected at least ", low,
               " and below ", high);
  return value;
}

void OneOf(absl::string_view flag, absl::string_view value,
           std::initializer_list<absl::string_view> choices) {
  WEFT_REQUIRE(std::find(choices.begin(), choices.end(), value) != choices.end(), "--", flag, "=", value,
               ": expected one of ", absl::StrJoin(choices, ", "));
}

void CheckCanWrite(absl::string_view flag, const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is no folder to write to
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  WEFT_REQUIRE(!std::filesystem::is_directory(path, ignored), "--", flag, "=", path,
               ": expected a file, got a folder");
  WEFT_REQUIRE(std::filesystem::is_directory(folder, ignored) && access(folder.c_str(), W_OK) == 0, "--",
               flag, "=", path, ": cannot write to the folder '", folder.string(), "'");
}

void CheckCanReplace(absl::string_view flag, const std::string& path) {
  CheckCanWrite(flag, path);
  std::error_code ignored;
  WEFT_REQUIRE(!std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored),
               "--", flag, "=", path, ": expected a file, got a device, a pipe or a socket");
}

}  // namespace weft
