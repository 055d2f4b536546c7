#include "parallel/join.h"

#include <optional>

#include "runtime/base/error.h"

namespace weft {

int64_t Join(Trainer& trainer, absl::FunctionRef<bool()> next, absl::FunctionRef<void(bool has_data)> step) {
  const int64_t before = trainer.step();
  bool has_data = true;
  int64_t last_with_data = before;
  for (;;) {
    const int64_t last = trainer.step();
    has_data = has_data && next();
    step(has_data);
    WEFT_REQUIRE(trainer.step() == last + 1, "Join: expected one step of the trainer after step ", last,
                 ", which is at step ", trainer.step(), " now");
    if (has_data) last_with_data = trainer.step();
    // Every rank has this record here, so all ask together, and leave the loop together. Batches may count nothing, too.
    const std::optional<StepMetrics>& record = trainer.last_record();
    if (!record || record->step <= before || record->num_tokens > 0) continue;
    if (!trainer.AnyRank(record->step <= last_with_data)) return record->step - before - 1;
  }
}

}  // namespace weft
