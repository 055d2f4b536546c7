#include "parallel/join.h"

#include <optional>

#include "runtime/base/error.h"

namespace weft {

int64_t Join(Trainer& trainer, absl::FunctionRef<bool()> next, absl::FunctionRef<void(bool has_data)> step) {
  const int64_t before = trainer.step();
  bool has_data = true;
  for (;;) {
    const int64_t last = trainer.step();
    has_data = has_data && next();
    step(has_data);
    WEFT_REQUIRE(trainer.step() == last + 1, "Join: expected one step of the trainer after step ", last,
                 ", which is at step ", trainer.step(), " now");
    const std::optional<StepMetrics>& record = trainer.last_record();
    // Every rank has this record here, so all leave the loop together.
    if (record && record->step > before && record->num_tokens == 0) return record->step - before - 1;
  }
}

}  // namespace weft
