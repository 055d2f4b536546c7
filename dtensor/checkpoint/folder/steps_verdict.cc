#include "dtensor/checkpoint/folder/steps_verdict.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace weft {
namespace {

StepVerdict VerdictOf(Files& files, const std::string& folder, int64_t step, bool with_elements) {
  try {
    return with_elements ? VerifyStep(files, folder, step) : InspectStep(files, folder, step);
  } catch (const Error& error) {
    return {.problems = {std::string(error.message())}};
  }
}

}  // namespace

std::vector<int64_t> StepsVerdict::ReferredToBy(int64_t step) const {
  const auto found = referred_to_by.find(step);
  return found == referred_to_by.end() ? std::vector<int64_t>() : found->second;
}

bool StepsVerdict::IsKeptForOthers(int64_t step) const {
  const StepVerdict& verdict = steps.at(step);
  return !verdict.problems.empty() && verdict.has_own_files && referred_to_by.count(step) > 0;
}

bool StepsVerdict::HasBroken() const {
  return std::any_of(steps.begin(), steps.end(), [this](const auto& step) {
    return !step.second.problems.empty() && !IsKeptForOthers(step.first);
  });
}

StepsVerdict InspectSteps(Files& files, const std::string& folder, const std::vector<int64_t>& steps,
                          bool with_elements) {
  StepsVerdict seen;
  for (const int64_t step : steps) {
    const StepVerdict& verdict = seen.steps[step] = VerdictOf(files, folder, step, with_elements);
    if (!verdict.problems.empty()) continue;
    const Manifest& manifest = seen.manifests[step] = ReadManifest(files, folder, step);
    for (const int64_t other : manifest.refers_to) seen.referred_to_by[other].push_back(step);
  }
  return seen;
}

}  // namespace weft
