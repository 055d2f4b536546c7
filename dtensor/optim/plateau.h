// A learning rate that falls when a metric no longer gets better.

#ifndef WEFT_DTENSOR_OPTIM_PLATEAU_H_
#define WEFT_DTENSOR_OPTIM_PLATEAU_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

struct PlateauOptions {
  enum class Better : uint8_t { kLower, kHigher };
  enum class ThresholdOf : uint8_t { kRelative, kAbsolute };

  double lr = 1e-3;       // at first
  double factor = 0.1;    // what the learning rate is multiplied by
  int64_t patience = 10;  // so many metrics in a row may be no better; the next one lowers it
  Better better = Better::kLower;
  // A metric is better than the best so far by more than that: relative, of the best; or absolute.
  double threshold = 1e-4;
  ThresholdOf threshold_of = ThresholdOf::kRelative;
  int64_t cooldown = 0;  // so many metrics after it fell do not count
  double min_lr = 0;
  double eps = 1e-8;  // a fall by no more than that is none

  bool operator==(const PlateauOptions&) const = default;
};

// Everything that a Plateau knows besides its options: saved with a run, it goes on as if it had not stopped.
struct PlateauState {
  double lr = 0;
  double best = 0;        // of the metrics so far; infinite before the first
  int64_t no_better = 0;  // metrics in a row
  int64_t cooldown_left = 0;

  // Four numbers with blanks between, of which Parse makes the same bits: a field of a checkpoint's metadata.
  std::string ToText() const;
  // Errors: InvalidArgument for another text.
  static PlateauState Parse(absl::string_view text);

  bool operator==(const PlateauState&) const = default;
};

// A schedule by what is observed: give it the metric after each evaluation, the same number on every rank,
// as the losses that collectives sum are.
//
//   Plateau plateau({.lr = 0.1, .patience = 3});
//   Trainer trainer(model, optimizer, {.schedule = [&](int64_t) { return plateau.lr(); }, ...});
//   ...
//   plateau.Observe(validation_loss);
//
// Source: PyTorch's ReduceLROnPlateau.
class Plateau {
 public:
  // Errors: InvalidArgument for a factor outside (0, 1), a negative patience, cooldown or lr.
  explicit Plateau(const PlateauOptions& options);

  double lr() const { return state_.lr; }
  // A metric that is NaN is no better than any.
  void Observe(double metric);

  const PlateauState& state() const { return state_; }
  void set_state(const PlateauState& state) { state_ = state; }

 private:
  bool IsBetter(double metric) const;

  PlateauOptions options_;
  PlateauState state_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_PLATEAU_H_
