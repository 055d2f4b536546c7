#include "tools/launcher/rendezvous/liveness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft {

void Liveness::Beat(const std::string& id) {
  const Clock::time_point now = now_();
  if (now - last_beat_ < interval_) return;
  last_beat_ = now;
  // Counted on over restarts of the store: a count that began anew might be the one that was seen last.
  store_->Add(absl::StrCat("beat/", id), 1);
}

Liveness::Life Liveness::Of(const std::string& id) {
  const Clock::time_point now = now_();
  const auto [entry, first] = seen_.try_emplace(id);
  Seen& seen = entry->second;
  if (!first && now - seen.looked < interval_) return seen.life;
  // A longer gap is one in which this process, perhaps the whole machine, was stopped: it proves nothing.
  seen.quiet += std::min<Clock::duration>(now - seen.looked, 2 * interval_);
  seen.looked = now;
  const std::string count = store_->TryGet(absl::StrCat("beat/", id)).value_or("");
  // That a store which has restarted does not know the node any more is no sign of its life.
  if (first || (count != seen.count && !count.empty())) {
    seen.life = first ? Life::kUnknown : Life::kAlive;
    seen.count = count;
    seen.quiet = Clock::duration::zero();
  } else if (seen.quiet >= silence_) {
    seen.life = Life::kSilent;
  }
  return seen.life;
}

}  // namespace weft
