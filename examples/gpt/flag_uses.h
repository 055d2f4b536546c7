// Which optimizers and schedules of train_gpt have what flags say.

#ifndef WEFT_EXAMPLES_GPT_FLAG_USES_H_
#define WEFT_EXAMPLES_GPT_FLAG_USES_H_

#include "absl/strings/string_view.h"

namespace weft {

// By --optimizer.
inline bool HasBeta1(absl::string_view optimizer) { return optimizer != "adafactor"; }
inline bool HasBeta2(absl::string_view optimizer) { return optimizer != "adafactor" && optimizer != "sgd"; }
inline bool HasEps(absl::string_view optimizer) {
  return optimizer == "adamw" || optimizer == "muon" || optimizer == "adamw8bit" || optimizer == "lamb";
}

// By --schedule_lr: whether the rate falls to --min_lr.
inline bool HasFloor(absl::string_view schedule) { return schedule != "constant"; }

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_FLAG_USES_H_
