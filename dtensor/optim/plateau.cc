#include "dtensor/optim/plateau.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {

std::string PlateauState::ToText() const {
  // 17 digits tell every double from every other.
  return absl::StrFormat("%.17g %.17g %d %d", lr, best, no_better, cooldown_left);
}

PlateauState PlateauState::Parse(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  PlateauState state;
  const bool fits = words.size() == 4 && absl::SimpleAtod(words[0], &state.lr) &&
                    absl::SimpleAtod(words[1], &state.best) && absl::SimpleAtoi(words[2], &state.no_better) &&
                    absl::SimpleAtoi(words[3], &state.cooldown_left);
  WEFT_REQUIRE(fits, "PlateauState: expected two numbers and two counts, as ToText writes them, got '", text,
               "'");
  return state;
}

Plateau::Plateau(const PlateauOptions& options) : options_(options) {
  WEFT_REQUIRE(options.factor > 0 && options.factor < 1, "Plateau: expected a factor between 0 and 1, got ",
               options.factor);
  WEFT_REQUIRE(options.lr >= 0 && options.patience >= 0 && options.cooldown >= 0,
               "Plateau: expected no negative lr, patience or cooldown, got ", options.lr, ", ",
               options.patience, " and ", options.cooldown);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  state_.lr = options.lr;
  state_.best = options.better == PlateauOptions::Better::kLower ? kInfinity : -kInfinity;
}

bool Plateau::IsBetter(double metric) const {
  const bool is_relative = options_.threshold_of == PlateauOptions::ThresholdOf::kRelative;
  const double best = state_.best;
  if (options_.better == PlateauOptions::Better::kLower) {
    return metric < (is_relative ? best * (1 - options_.threshold) : best - options_.threshold);
  }
  return metric > (is_relative ? best * (1 + options_.threshold) : best + options_.threshold);
}

// In PyTorch's order: a metric within the cooldown may be the best, but never counts as one that is no better.
void Plateau::Observe(double metric) {
  if (IsBetter(metric)) {
    state_.best = metric;
    state_.no_better = 0;
  } else {
    ++state_.no_better;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.no_better = 0;
  }
  if (state_.no_better <= options_.patience) return;
  const double lower = std::max(state_.lr * options_.factor, options_.min_lr);
  if (state_.lr - lower > options_.eps) state_.lr = lower;
  state_.cooldown_left = options_.cooldown;
  state_.no_better = 0;
}

}  // namespace weft
