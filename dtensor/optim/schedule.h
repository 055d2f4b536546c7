#ifndef WEFT_DTENSOR_OPTIM_SCHEDULE_H_
#define WEFT_DTENSOR_OPTIM_SCHEDULE_H_

#include <cstdint>
#include <functional>

namespace weft {

// The learning rate of step 1, 2, ...: any function of the step, the same on every rank.
using Schedule = std::function<double(int64_t step)>;

// Linear warm-up, then a cosine from `peak` down to `floor`.
struct WarmupCosine {
  double peak = 1e-3;
  double floor = 1e-4;
  int64_t warmup_steps = 100;
  int64_t total_steps = 2000;

  // The learning rate of step 1, 2, ..., total_steps. The first is peak / warmup_steps, step `warmup_steps`
  // has the peak, the last and all after it the floor. Without warm-up, step 1 starts the cosine at the peak.
  // Step 0, before the first, has what the first step comes from: 0, or without warm-up the peak.
  double At(int64_t step) const;
  double operator()(int64_t step) const { return At(step); }

  bool operator==(const WarmupCosine&) const = default;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_SCHEDULE_H_
