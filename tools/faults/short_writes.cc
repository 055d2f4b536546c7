#include "tools/faults/short_writes.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/faults/preloading_program.h"

namespace weft {

ShortWrites::ShortWrites(const std::string& folder, const std::string& target, const std::string& library,
                         const std::string& program)
    : folder_(folder) {
  if (!std::filesystem::exists(library)) {
    Throw(absl::StatusCode::kFailedPrecondition, "writes are cut short by cut_writes, and there is no '",
          library, "': start chaos by bazel run, or say where it is (--cut_writes)");
  }
  const std::string under = std::filesystem::weakly_canonical(target).string();
  WritePreloadingProgram(
      this->program(), library,
      absl::StrCat("export CUT_WRITES_UNDER='", under, "'\n", "export CUT_WRITES_WHILE='", sign(), "'\n"),
      program);
}

void ShortWrites::Begin() { std::ofstream(sign(), std::ios::trunc).flush(); }

void ShortWrites::End() {
  std::error_code error;
  std::filesystem::remove(sign(), error);
}

int64_t ShortWrites::num_cut() const {
  std::error_code error;
  const auto size = std::filesystem::file_size(sign(), error);
  return error ? 0 : static_cast<int64_t>(size);
}

}  // namespace weft
