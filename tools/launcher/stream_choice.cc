#include "tools/launcher/stream_choice.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

bool ParseBits(absl::string_view text, int* bits) {
  return absl::SimpleAtoi(text, bits) && *bits >= 0 && *bits <= 3;
}

[[noreturn]] void ThrowUnreadable(absl::string_view text) {
  ThrowInvalidArgument("cannot read \"", text,
                       "\": expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or pairs of a local rank "
                       "and one of these, as in 0:3,1:2");
}

}  // namespace

StreamChoice StreamChoice::Parse(absl::string_view text) {
  StreamChoice choice;
  if (ParseBits(text, &choice.everywhere_)) return choice;
  choice.everywhere_ = 0;
  for (absl::string_view pair : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(pair, ':');
    int rank = 0;
    int bits = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &rank) || rank < 0 || !ParseBits(parts[1], &bits)) {
      ThrowUnreadable(text);
    }
    WEFT_REQUIRE(choice.by_rank_.emplace(rank, bits).second, "cannot read \"", text, "\": local rank ", rank,
                 " is named twice");
  }
  return choice;
}

int StreamChoice::Bits(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? everywhere_ : found->second;
}

}  // namespace weft
