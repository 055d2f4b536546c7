#include "parallel/scheduler_options.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {

SchedulerOptions::operator SchedulerChoices() const {
  return {
      .bucket_mb = bucket_mb,
      .prefetch = prefetch,
      .overlap = overlap,
      .find_unused = find_unused,
      .lane_priority = lane_priority,
  };
}

SchedulerOptions SchedulerChoices::Options() const {
  WEFT_REQUIRE(!bucket_mb || (std::isfinite(*bucket_mb) && *bucket_mb > 0),
               "scheduler, field \"bucket_mb\": expected a number above 0, got ", *bucket_mb);
  WEFT_REQUIRE(!prefetch || *prefetch >= 0,
               "scheduler, field \"prefetch\": expected a whole number of at least 0, got ", *prefetch);
  WEFT_REQUIRE(
      !lane_priority.value_or(false) || overlap.value_or(true),
      "scheduler: lane_priority=true: expected overlap=true, got overlap=false: one operation runs at "
      "a time then");
  const SchedulerOptions defaults;
  return {
      .bucket_mb = bucket_mb.value_or(defaults.bucket_mb),
      .prefetch = prefetch.value_or(defaults.prefetch),
      .overlap = overlap.value_or(defaults.overlap),
      .find_unused = find_unused.value_or(defaults.find_unused),
      .lane_priority = lane_priority.value_or(defaults.lane_priority),
  };
}

SchedulerChoices SchedulerChoices::Merge(const SchedulerChoices& later) const {
  return {
      .bucket_mb = later.bucket_mb ? later.bucket_mb : bucket_mb,
      .prefetch = later.prefetch ? later.prefetch : prefetch,
      .overlap = later.overlap ? later.overlap : overlap,
      .find_unused = later.find_unused ? later.find_unused : find_unused,
      .lane_priority = later.lane_priority ? later.lane_priority : lane_priority,
  };
}

std::string SchedulerChoices::ToString() const {
  std::vector<std::string> parts;
  if (bucket_mb) parts.push_back(absl::StrCat("bucket_mb=", *bucket_mb));
  if (prefetch) parts.push_back(absl::StrCat("prefetch=", *prefetch));
  if (overlap) parts.push_back(absl::StrCat("overlap=", *overlap ? "true" : "false"));
  if (find_unused) parts.push_back(absl::StrCat("find_unused=", *find_unused ? "true" : "false"));
  if (lane_priority) parts.push_back(absl::StrCat("lane_priority=", *lane_priority ? "true" : "false"));
  return absl::StrJoin(parts, ", ");
}

}  // namespace weft
