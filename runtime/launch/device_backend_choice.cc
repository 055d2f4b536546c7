#include "runtime/launch/device_backend_choice.h"

#include <chrono>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// False if the options alone say no.
bool MayUse(const WorldOptions& options) {
  if (options.backend == Backend::kNccl) {
    WEFT_REQUIRE(options.device == DeviceType::kCuda, "backend nccl: ranks are on ",
                 DeviceTypeName(options.device), "; it moves what is on GPUs: --device=cuda");
    DeviceGroupsOf(options.device);
    return true;
  }
  return options.backend == Backend::kAuto && options.device == DeviceType::kCuda &&
         HasDeviceGroups(options.device);
}

// NCCL chooses by the size of a call and what it has measured of the machine, and with it the order of a sum.
void RequireOneOrder() {
  std::map<std::string, std::string> choices = NcclVariables();
  for (const char* const name : {"NCCL_ALGO", "NCCL_PROTO"}) {
    const std::string& text = choices[name];
    if (!text.empty() && text.find_first_of("^,;") == std::string::npos) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "deterministic: ", name, " is '", text,
          "'; expected one that NCCL is to use, such as NCCL_ALGO=Ring and NCCL_PROTO=Simple: otherwise it "
          "chooses in "
          "which order it sums");
  }
}

}  // namespace

bool ThreadsUseDeviceGroups(const WorldOptions& options, int num_ranks) {
  if (!MayUse(options)) return false;
  const int count = CountDevices(options.device);
  WEFT_REQUIRE(options.backend != Backend::kNccl || count >= num_ranks, "backend nccl: ", num_ranks,
               " ranks, but this process sees ", count, " GPUs: NCCL needs one for each; use --backend=auto");
  if (count >= num_ranks && options.deterministic) RequireOneOrder();
  return count >= num_ranks;
}

bool ProcessesUseDeviceGroups(const WorldOptions& options, Store& store, int rank, int size,
                              const Allocator& allocator) {
  constexpr std::chrono::minutes kPatience(5);
  if (!MayUse(options)) return false;
  const auto key = [](int rank) { return absl::StrCat("devices/", rank); };
  const std::string verdict_key = "devices/verdict";
  store.Set(key(rank), DeviceGroupsOf(options.device).device_name(allocator));
  if (rank == 0) {
    std::set<std::string> names;
    std::string verdict;  // empty: one each
    for (int other = 0; other < size; ++other) {
      const std::string name = store.Get(key(other), kPatience);
      if (!names.insert(name).second && verdict.empty()) {
        verdict = absl::StrCat("rank ", other, " shares ", name, " with a rank before it");
      }
    }
    store.Set(verdict_key, verdict.empty() ? "one each" : verdict);
  }
  const std::string verdict = store.Get(verdict_key, kPatience);
  WEFT_REQUIRE(options.backend != Backend::kNccl || verdict == "one each", "backend nccl: ", verdict,
               ": NCCL needs a GPU for each rank; use --backend=auto");
  if (verdict == "one each" && options.deterministic) RequireOneOrder();
  return verdict == "one each";
}

}  // namespace weft
