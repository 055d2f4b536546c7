#include "tools/faults/clocks.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr double kSecondsOf30Days = 30.0 * 86400;

}  // namespace

FalseClocks::FalseClocks(const std::string& folder, const std::string& libfaketime,
                         const std::string& program)
    : folder_(folder) {
  if (!std::filesystem::exists(libfaketime)) {
    Throw(absl::StatusCode::kFailedPrecondition, "clocks jump by libfaketime, and there is no '", libfaketime,
          "': install the package libfaketime, or say where it is (--libfaketime)");
  }
  std::ofstream(this->program()) << "#!/bin/bash\n"
                                 << "clock='" << folder << "'/clock.$RANK\n"
                                 << "[[ -e $clock ]] || echo +0 > \"$clock\"\n"
                                 << "export LD_PRELOAD='" << libfaketime
                                 << "' FAKETIME_TIMESTAMP_FILE=$clock\n"
                                 << "export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"
                                 << "exec '" << program << "' \"$@\"\n";
  std::filesystem::permissions(this->program(), std::filesystem::perms::owner_all);
}

void FalseClocks::Jump(int rank, double share) {
  // Renamed into place: whoever looks for the time sees the old one or the new one.
  const std::string clock = absl::StrCat(folder_, "/clock.", rank);
  std::ofstream(clock + ".new") << absl::StrFormat("%+.0f\n", share * kSecondsOf30Days);
  std::filesystem::rename(clock + ".new", clock);
}

}  // namespace weft
