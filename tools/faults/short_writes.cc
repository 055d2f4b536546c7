#include "tools/faults/short_writes.h"

#include <filesystem>
#include <fstream>

#include "runtime/base/error.h"

namespace weft {

ShortWrites::ShortWrites(const std::string& folder, const std::string& target, const std::string& library,
                         const std::string& program)
    : folder_(folder) {
  if (!std::filesystem::exists(library)) {
    Throw(absl::StatusCode::kFailedPrecondition, "writes are cut short by cut_writes, and there is no '",
          library, "': start chaos by bazel run, or say where it is (--cut_writes)");
  }
  std::ofstream(this->program()) << "#!/bin/bash\n"
                                 << "export LD_PRELOAD='" << library << "'${LD_PRELOAD:+:$LD_PRELOAD}\n"
                                 << "export CUT_WRITES_UNDER='"
                                 << std::filesystem::weakly_canonical(target).string() << "'\n"
                                 << "export CUT_WRITES_WHILE='" << sign() << "'\n"
                                 << "exec '" << program << "' \"$@\"\n";
  std::filesystem::permissions(this->program(), std::filesystem::perms::owner_all);
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
