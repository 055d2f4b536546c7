#ifndef WEFT_TESTS_OPS_CPU_EACH_LEVEL_H_
#define WEFT_TESTS_OPS_CPU_EACH_LEVEL_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace weft {

// Runs `body` at each instruction set level that this machine and the build have.
inline void ForEachLevel(absl::FunctionRef<void()> body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Fixed pseudo-random numbers.
inline std::vector<float> UniformFloats(int64_t n, float low, float high) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> values(n);
  for (float& value : values) value = draw(random);
  return values;
}

}  // namespace weft

#endif  // WEFT_TESTS_OPS_CPU_EACH_LEVEL_H_
