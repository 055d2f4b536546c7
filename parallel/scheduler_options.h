#ifndef WEFT_PARALLEL_SCHEDULER_OPTIONS_H_
#define WEFT_PARALLEL_SCHEDULER_OPTIONS_H_

namespace weft {

// How a plan's communication of parameters and gradients is scheduled. Values do not depend on it.
struct SchedulerOptions {
  double bucket_mb = 25;     // of gradients that move together, MiB; above 0
  int prefetch = 1;          // units whose parameters are gathered ahead of their use; at least 0
  bool overlap = true;       // communication runs beside computing
  bool find_unused = false;  // ranks may reach different parameters in one step

  bool operator==(const SchedulerOptions&) const = default;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_OPTIONS_H_
