#include "benchmarks/resident_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace weft {

int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {  // "VmHWM:     1234 kB"
    absl::string_view rest = line;
    int64_t kibibytes = 0;
    if (!absl::ConsumePrefix(&rest, "VmHWM:") || !absl::ConsumeSuffix(&rest, "kB")) continue;
    return absl::SimpleAtoi(rest, &kibibytes) ? kibibytes << 10 : 0;
  }
  return 0;
}

void ResetPeakResident() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace weft
