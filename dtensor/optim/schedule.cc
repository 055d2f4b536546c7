#include "dtensor/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace weft {

double WarmupCosine::At(int64_t step) const {
  if (warmup_steps > 0 && step <= warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (step == 0) return peak;
  if (step >= total_steps) return floor;
  // The step that has the whole peak: the last of the warm-up, or the first of all.
  const int64_t start = warmup_steps > 0 ? warmup_steps : 1;
  const double progress = static_cast<double>(step - start) / static_cast<double>(total_steps - start);
  return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace weft
