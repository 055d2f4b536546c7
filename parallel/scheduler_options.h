// What the scheduler of a training step is told: sizes and depths, no placement.

#ifndef WEFT_PARALLEL_SCHEDULER_OPTIONS_H_
#define WEFT_PARALLEL_SCHEDULER_OPTIONS_H_

#include <optional>
#include <string>

namespace weft {

struct SchedulerChoices;

// Values do not depend on these; time and memory do.
struct SchedulerOptions {
  double bucket_mb = 25;  // MiB of a rank's gradients, as they are summed, that move together, at most
  // Units whose parameters are gathered ahead of their use. In a pipeline the schedule says which are, and when.
  int prefetch = 1;
  bool overlap = true;  // communication runs beside computing
  // Ranks may reach different parameters in one step; of FullyShard the same units. Each pass reaches at least one on every rank.
  // Gradients move at each pass's end, and are whole until then.
  bool find_unused = false;
  // Between chunks the more urgent communication goes first (LanePriority), where the CPU moves the bytes. For
  // all models of a rank, what the last plan says holds.
  bool lane_priority = false;

  operator SchedulerChoices() const;  // all of them

  bool operator==(const SchedulerOptions&) const = default;
};

// Those of the options that somebody chose.
struct SchedulerChoices {
  std::optional<double> bucket_mb = std::nullopt;
  std::optional<int> prefetch = std::nullopt;
  std::optional<bool> overlap = std::nullopt;
  std::optional<bool> find_unused = std::nullopt;
  std::optional<bool> lane_priority = std::nullopt;

  // The options with these chosen.
  // Errors: InvalidArgument that names the field and its value, unless bucket_mb > 0 and finite, prefetch >= 0, and
  //         lane_priority only with overlap.
  SchedulerOptions Options() const;

  // These, but what `later` chooses as it says.
  SchedulerChoices Merge(const SchedulerChoices& later) const;

  bool operator==(const SchedulerChoices&) const = default;
  // "bucket_mb=10, overlap=false"; empty if nothing is chosen.
  std::string ToString() const;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_OPTIONS_H_
