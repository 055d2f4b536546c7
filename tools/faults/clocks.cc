#include "tools/faults/clocks.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "tools/faults/preloading_program.h"
#include "tools/faults/processes.h"

namespace weft {
namespace {

constexpr double kSecondsOf30Days = 30.0 * 86400;
constexpr char kSharedMemory[] = "/dev/shm";

// The process whose libfaketime has made the file, which stays when it is killed; nothing for other files.
std::optional<pid_t> ProcessOf(absl::string_view name) {
  pid_t pid = 0;
  if (!absl::ConsumePrefix(&name, "sem.faketime_sem_") && !absl::ConsumePrefix(&name, "faketime_shm_")) {
    return std::nullopt;
  }
  return absl::SimpleAtoi(name, &pid) ? std::optional(pid) : std::nullopt;
}

std::set<std::string> NamesOfLibfaketime() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kSharedMemory, error)) {
    const std::string name = entry.path().filename().string();
    if (ProcessOf(name)) names.insert(name);
  }
  return names;
}

}  // namespace

FalseClocks::FalseClocks(const std::string& folder, const std::string& libfaketime,
                         const std::string& program)
    : folder_(folder), names_before_(NamesOfLibfaketime()) {
  if (!std::filesystem::exists(libfaketime)) {
    Throw(absl::StatusCode::kFailedPrecondition, "clocks jump by libfaketime, and there is no '", libfaketime,
          "': install the package libfaketime, or say where it is (--libfaketime)");
  }
  WritePreloadingProgram(this->program(), libfaketime,
                         absl::StrCat("clock='", folder,
                                      "'/clock.$RANK\n"
                                      "[[ -e $clock ]] || echo +0 > \"$clock\"\n"
                                      "export FAKETIME_TIMESTAMP_FILE=$clock\n"
                                      "export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"),
                         program);
}

FalseClocks::~FalseClocks() {
  for (const std::string& name : NamesOfLibfaketime()) {
    if (names_before_.contains(name) || IsAlive(*ProcessOf(name))) continue;
    std::error_code error;
    std::filesystem::remove(absl::StrCat(kSharedMemory, "/", name), error);
  }
}

void FalseClocks::Jump(int rank, double share) {
  // Renamed into place: whoever looks for the time sees the old one or the new one.
  const std::string clock = absl::StrCat(folder_, "/clock.", rank);
  std::ofstream(clock + ".new") << absl::StrFormat("%+.0f\n", share * kSecondsOf30Days);
  std::filesystem::rename(clock + ".new", clock);
}

}  // namespace weft
