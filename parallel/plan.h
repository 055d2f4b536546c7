#ifndef WEFT_PARALLEL_PLAN_H_
#define WEFT_PARALLEL_PLAN_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "parallel/scheduler_options.h"
#include "parallel/style.h"
#include "parallel/styles.h"

namespace weft {

// One row of a plan: the modules or parameters it means, and what a style does to them.
struct PlanEntry {
  // The path of modules: "*" is any one component, "**" any number of them (none too), "" the root. One that no
  // module has may name parameters: "blocks.*.attn.qkv.bias".
  std::string path;
  Style style;

  bool operator==(const PlanEntry&) const = default;
};

// How a model is spread over a mesh, as data. Entries on one parameter compose if their axes differ, in plan
// order, the first outermost. A value: copies, compares, prints, merges, reads and writes JSON.
class Plan {
 public:
  Plan() = default;
  Plan(std::initializer_list<PlanEntry> entries);
  // Errors: as set_scheduler.
  explicit Plan(std::vector<PlanEntry> entries, const SchedulerChoices& scheduler = {});

  const std::vector<PlanEntry>& entries() const { return entries_; }

  // How a training step under this plan is scheduled: what was chosen, otherwise the defaults.
  SchedulerOptions scheduler() const { return scheduler_.Options(); }
  const SchedulerChoices& scheduler_choices() const { return scheduler_; }
  // Replaces what was chosen.
  // Errors: InvalidArgument as SchedulerChoices::Options.
  void set_scheduler(const SchedulerChoices& choices);

  // Whether an entry makes modules compute, or gradients be summed, in `dtype`: of f16 training wants a loss scale.
  // Errors: InvalidArgument for a style that nobody has registered.
  bool UsesDType(DType dtype) const;

  // This plan's entries, then `other`'s; of the scheduler, what `other` chooses goes before what this plan does.
  // Errors: as set_scheduler, of both together.
  Plan Merge(const Plan& other) const;

  // {"entries": [{"path": "blocks.*.attn.qkv", "style": "ColumnParallel", "axis": "tp", "output":
  // "Shard(1)"}, ...], "scheduler": {"bucket_mb": 10}}; fields of the style, and "scheduler" with its fields, only
  // where given.
  // Errors: InvalidArgument as CheckStyle.
  std::string ToJson() const;
  // Errors: InvalidArgument that names the entry and the field, and the styles and fields that there are.
  static Plan FromJson(absl::string_view json);

  // One line per entry: path, style. One for the scheduler, where something is chosen.
  std::string ToString() const;

  bool operator==(const Plan&) const = default;

 private:
  std::vector<PlanEntry> entries_;
  SchedulerChoices scheduler_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PLAN_H_
