#include "parallel/scheduler/data_scheduler.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "mesh/redistribution/cost_model.h"
#include "mesh/shard_math.h"
#include "parallel/scheduler/gradient_buckets.h"
#include "parallel/scheduler/smaller_group.h"
#include "parallel/scheduler/stage_data.h"
#include "parallel/scheduler/unit_copies.h"

namespace weft {
namespace {

// Whether some parameter of the module, or below it, is trained. Of a model in training the first one says so: nothing is
// listed, since every call of a root asks.
bool IsTrained(const Module& module) {
  const std::vector<Parameter*>& own = module.parameters();
  const std::vector<Module*>& children = module.children();
  return std::any_of(
             own.begin(), own.end(),
             [](const Parameter* parameter) { return parameter->is_here() && parameter->trainable(); }) ||
         std::any_of(children.begin(), children.end(), [](const Module* child) { return IsTrained(*child); });
}

// Tells the units what forward does.
class UnitObserver final : public ModuleObserver {
 public:
  // `root`: the model, which owns it, if it is the model's own; otherwise null.
  UnitObserver(std::shared_ptr<UnitCopies> copies, std::vector<int> units, Module* root)
      : copies_(std::move(copies)), units_(std::move(units)), root_(root) {}

  void OnLeave() noexcept override {
    for (const int unit : units_) copies_->LeaveModule(unit);
    if (root_ != nullptr) copies_->EndForward(IsTrained(*root_));
  }

 private:
  const std::shared_ptr<UnitCopies> copies_;
  const std::vector<int> units_;  // of the module: one for each stage that has some of it
  Module* const root_;
};

// Tells the units which gradients are there.
class UnitGradients {
 public:
  // `buckets` owns it.
  UnitGradients(const GradientBuckets* buckets, std::shared_ptr<UnitCopies> copies,
                std::vector<int> unit_of_leaf, int num_units)
      : buckets_(buckets),
        copies_(std::move(copies)),
        unit_of_leaf_(std::move(unit_of_leaf)),
        num_awaited_(num_units) {}

  void operator()(int leaf) {
    if (leaf < 0) {
      in_pass_ = false;
      copies_->EndPass();
      return;
    }
    if (!std::exchange(in_pass_, true)) CountAwaited();
    if (const int unit = unit_of_leaf_[leaf]; unit >= 0 && --num_awaited_[unit] == 0) {
      copies_->DeliveredAll(unit);
    }
  }

 private:
  void CountAwaited() {
    std::fill(num_awaited_.begin(), num_awaited_.end(), 0);
    for (int leaf = 0; leaf < std::ssize(unit_of_leaf_); ++leaf) {
      if (unit_of_leaf_[leaf] >= 0 && buckets_->expects(leaf)) ++num_awaited_[unit_of_leaf_[leaf]];
    }
  }

  const GradientBuckets* buckets_;
  std::shared_ptr<UnitCopies> copies_;
  std::vector<int> unit_of_leaf_;
  std::vector<int> num_awaited_;  // of each unit, in this pass
  bool in_pass_ = false;
};

void ObserveModules(Module& model, const std::vector<ResolvedUnit>& units,
                    const std::shared_ptr<UnitCopies>& copies) {
  absl::flat_hash_map<std::string, std::vector<int>> units_of_path;
  for (int i = 0; i < std::ssize(units); ++i) units_of_path[units[i].path].push_back(i);
  for (Module* module : model.AllModules()) {
    std::vector<int> of_module = units_of_path[module->path()];
    Module* const root = module == &model ? module : nullptr;
    if (of_module.empty() && root == nullptr) continue;
    module->set_observer(std::make_shared<UnitObserver>(copies, std::move(of_module), root));
  }
}

// What a bucket has to hold to be worth a collective of its own: its bytes take twenty times as long as a message's
// start, along the axis where that is most. By the default Machine 1 MB.
int64_t LeastBucketBytes(const DeviceMesh& mesh, const CostModel& cost_model) {
  constexpr double kStarts = 20;
  constexpr double kMost = 1 << 30;  // where bytes are free
  double bytes = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const AxisCost& cost = cost_model.axis(axis);
    if (mesh.axis_size(axis) > 1) bytes = std::max(bytes, std::min(kMost, kStarts * cost.alpha / cost.beta));
  }
  return static_cast<int64_t>(bytes);
}

// What the ledger calls a module of the model.
std::string BehindName(const Module& model, const std::string& path) {
  const std::string name = model.full_path();
  return name.empty() || path.empty() ? absl::StrCat(name, path) : absl::StrCat(name, ".", path);
}

// The units as the copies know them; sets the unit of each of their leaves.
std::vector<CopyUnit> MakeCopyUnits(const Module& model, const IntrusivePtr<MeshContext>& context,
                                    const std::vector<Parameter*>& parameters,
                                    const std::vector<ResolvedUnit>& units, Lane lane,
                                    std::vector<int>* unit_of_leaf) {
  std::vector<CopyUnit> copy_units;
  std::map<std::pair<int, int64_t>, std::shared_ptr<const SmallerGroup>> smaller_groups;  // by axis, size
  for (int i = 0; i < std::ssize(units); ++i) {
    CopyUnit unit = {.path = BehindName(model, units[i].path),
                     .parameters = {},
                     .is_root = units[i].path == model.path(),
                     .reshards = units[i].reshard != Reshard::kNever};
    if (units[i].reshard_to > 0 && !unit.is_root) {
      unit.axis = units[i].reshard_axis;
      auto& group = smaller_groups[{unit.axis, units[i].reshard_to}];
      if (group == nullptr) {
        group = std::make_shared<const SmallerGroup>(context, unit.axis, units[i].reshard_to, lane);
      }
      unit.rests_in = group;
    }
    for (const int parameter : units[i].parameters) {
      (*unit_of_leaf)[parameter] = i;
      unit.parameters.push_back(parameters[parameter]);
    }
    copy_units.push_back(std::move(unit));
  }
  return copy_units;
}

// How gradients are divided among buckets.
struct BucketLists {
  // A set of buckets each; between them they have every parameter that is here once, by number.
  std::vector<std::vector<int>> lists;
  std::vector<LeafNode*> leaves;  // of each parameter: where its gradient comes to rest
  bool by_stage = false;
};

// Of a parameter's gradient, what the largest piece that a rank has of it takes where it is summed. Tensor parallelism splits
// the gradient as it does the parameter.
int64_t MovedBytes(const Parameter& parameter, const DeviceMesh& mesh) {
  const TensorType type = parameter.at_rest().type();
  return MaxLocalElements(type.shape, parameter.layouts().compute, mesh) *
         ItemSize(parameter.reduce_dtype().value_or(type.dtype));
}

// Of the parameters of one list.
std::shared_ptr<GradientBuckets> MakeBuckets(MeshContext& context, const std::vector<Parameter*>& parameters,
                                             const BucketLists& lists, size_t list,
                                             const std::vector<int>& unit_of_leaf,
                                             const std::vector<ParameterCommunication>& communication,
                                             const SchedulerOptions& options) {
  int64_t gradient_bytes = 0;
  std::vector<BucketLeaf> leaves;
  for (const int number : lists.lists[list]) {
    const Parameter& parameter = *parameters[number];
    const ParameterLayouts& layouts = parameter.layouts();
    leaves.push_back({.node = lists.leaves[number],
                      .path = parameter.full_path(),
                      .type = parameter.at_rest().type(),
                      .layout = layouts.of_gradient(),
                      .reduce_dtype = parameter.reduce_dtype(),
                      .accumulates_unreduced = layouts.accumulates_unreduced,
                      .unit = unit_of_leaf[number],
                      .moved_bytes = MovedBytes(parameter, context.mesh()),
                      .communication = communication[number]});
    gradient_bytes += leaves.back().moved_bytes;
  }
  // Twenty buckets at least, if each is still worth a collective: otherwise a small model's gradients would move when
  // backward has ended.
  const auto most = static_cast<int64_t>(std::min(options.bucket_mb * (1 << 20), 0x1p62));
  const int64_t least = LeastBucketBytes(context.mesh(), context.cost_model());
  const BucketOptions of_buckets = {.bucket_bytes = std::min(most, std::max(least, gradient_bytes / 20)),
                                    .lane = options.overlap ? Lane::kGrad : Lane::kInline,
                                    .replica_lane = options.overlap ? Lane::kReplica : Lane::kInline,
                                    .find_unused = options.find_unused,
                                    .holds_all = lists.by_stage};
  return std::make_shared<GradientBuckets>(context, std::move(leaves), of_buckets);
}

std::vector<LeafNode*> LeavesOf(const std::vector<Parameter*>& parameters) {
  std::vector<LeafNode*> leaves;
  for (const Parameter* parameter : parameters) leaves.push_back(&parameter->leaf());
  return leaves;
}

// What a model's parameters have been given.
struct Scheduled {
  std::vector<std::shared_ptr<GradientBuckets>> buckets;  // of each list of parameters
  std::shared_ptr<UnitCopies> copies;                     // null: there are no units
};

// `communication`: of each parameter.
Scheduled Schedule(Module& model, const IntrusivePtr<MeshContext>& context,
                   const std::vector<ResolvedUnit>& units,
                   const std::vector<ParameterCommunication>& communication, const BucketLists& lists,
                   const SchedulerOptions& options) {
  const Lane lane = options.overlap ? Lane::kParam : Lane::kInline;
  const std::vector<Parameter*> parameters = model.AllParameters();
  std::vector<int> unit_of_leaf(parameters.size(), -1);
  const std::vector<CopyUnit> copy_units =
      MakeCopyUnits(model, context, parameters, units, lane, &unit_of_leaf);
  Scheduled scheduled;
  for (size_t list = 0; list < lists.lists.size(); ++list) {
    scheduled.buckets.push_back(
        MakeBuckets(*context, parameters, lists, list, unit_of_leaf, communication, options));
    const std::vector<int>& numbers = lists.lists[list];
    for (size_t i = 0; i < numbers.size(); ++i) {
      parameters[numbers[i]]->leaf().set_sink(scheduled.buckets.back(), static_cast<int>(i));
    }
  }
  for (Parameter* parameter : parameters) parameter->set_update_lane(lane);
  if (units.empty()) return scheduled;

  // A schedule says itself what is gathered ahead.
  scheduled.copies = std::make_shared<UnitCopies>(
      *context, copy_units,
      UnitCopyOptions{.prefetch = lists.by_stage ? 0 : options.prefetch, .overlap = options.overlap});
  int copy = 0;
  for (const ResolvedUnit& unit : units) {
    for (const int parameter : unit.parameters) {
      parameters[parameter]->set_copy_source(scheduled.copies, copy++);
    }
  }
  for (size_t i = 0; i < lists.lists.size(); ++i) {
    std::vector<int> units_of_list;
    for (const int parameter : lists.lists[i]) units_of_list.push_back(unit_of_leaf[parameter]);
    scheduled.buckets[i]->set_observer(UnitGradients(scheduled.buckets[i].get(), scheduled.copies,
                                                     std::move(units_of_list),
                                                     static_cast<int>(units.size())));
  }
  ObserveModules(model, units, scheduled.copies);
  return scheduled;
}

}  // namespace

void ScheduleData(Module& model, const IntrusivePtr<MeshContext>& context,
                  const std::vector<ResolvedUnit>& units,
                  const std::vector<ParameterCommunication>& communication, const SchedulerOptions& options) {
  if (context->mesh().num_ranks() == 1) return;
  std::vector<int> all(model.AllParameters().size());
  std::iota(all.begin(), all.end(), 0);
  Schedule(model, context, units, communication, {.lists = {all}, .leaves = LeavesOf(model.AllParameters())},
           options);
}

std::shared_ptr<StageData> ScheduleStageData(Module& model, const IntrusivePtr<MeshContext>& context,
                                             const std::vector<ResolvedUnit>& units,
                                             const std::vector<ParameterCommunication>& communication,
                                             const std::vector<std::vector<int>>& stages,
                                             const ModelStages& model_stages,
                                             const SchedulerOptions& options) {
  const int64_t index = model_stages.context->coordinate()[model_stages.axis];
  StageParts parts;
  std::map<std::vector<int>, std::vector<int>> parameters_of;  // numbers, by their stages on this rank
  std::vector<std::vector<int>> here(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    for (const int stage : stages[i]) {
      if (model_stages.stage_ranks[stage] == index) here[i].push_back(stage);
    }
    parameters_of[here[i]].push_back(static_cast<int>(i));
  }
  const std::vector<Parameter*> parameters = model.AllParameters();
  BucketLists lists = {.lists = {}, .leaves = LeavesOf(parameters), .by_stage = true};
  for (const auto& [of, numbers] : parameters_of) lists.lists.push_back(numbers);
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].size() == 1) continue;
    std::set<int> sharers;
    for (const int stage : stages[i]) sharers.insert(model_stages.stage_ranks[stage]);
    const StageTerm term = MakeStageTerm(*parameters[i]);
    parts.terms[{sharers.begin(), sharers.end()}].push_back(term);
    lists.leaves[i] = term.leaf.get();
    if (context->mesh().num_ranks() == 1) parameters[i]->leaf().set_sink(SinkInto(term), 0);
  }
  if (context->mesh().num_ranks() > 1) {
    const Scheduled scheduled = Schedule(model, context, units, communication, lists, options);
    parts.copies = scheduled.copies;
    size_t list = 0;
    for (const auto& [of, numbers] : parameters_of) parts.buckets.push_back({of, scheduled.buckets[list++]});
    for (const ResolvedUnit& unit : units) parts.units.push_back(here[unit.parameters[0]]);
  }
  return MakeStageData(model_stages, std::move(parts));
}

}  // namespace weft
