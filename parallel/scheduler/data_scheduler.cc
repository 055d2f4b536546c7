#include "parallel/scheduler/data_scheduler.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "mesh/redistribution/cost_model.h"
#include "parallel/scheduler/gradient_buckets.h"
#include "parallel/scheduler/smaller_group.h"
#include "parallel/scheduler/unit_copies.h"

namespace weft {
namespace {

// Tells the units what forward does.
class UnitObserver final : public ModuleObserver {
 public:
  UnitObserver(std::shared_ptr<UnitCopies> copies, int unit, bool is_root)
      : copies_(std::move(copies)), unit_(unit), is_root_(is_root) {}

  void OnLeave() noexcept override {
    if (unit_ >= 0) copies_->LeaveModule(unit_);
    if (is_root_) copies_->EndForward();
  }

 private:
  const std::shared_ptr<UnitCopies> copies_;
  const int unit_;  // -1: the root of the model, which is no unit
  const bool is_root_;
};

// Tells the units which gradients are there.
class UnitGradients {
 public:
  UnitGradients(std::shared_ptr<UnitCopies> copies, std::vector<int> unit_of_leaf, int num_units)
      : copies_(std::move(copies)), unit_of_leaf_(std::move(unit_of_leaf)), num_leaves_(num_units) {
    for (const int unit : unit_of_leaf_) {
      if (unit >= 0) ++num_leaves_[unit];
    }
    num_awaited_ = num_leaves_;
  }

  void operator()(int leaf) {
    if (leaf < 0) {
      num_awaited_ = num_leaves_;
      copies_->EndPass();
    } else if (const int unit = unit_of_leaf_[leaf]; unit >= 0 && --num_awaited_[unit] == 0) {
      copies_->DeliveredAll(unit);
    }
  }

 private:
  std::shared_ptr<UnitCopies> copies_;
  std::vector<int> unit_of_leaf_;
  std::vector<int> num_leaves_;
  std::vector<int> num_awaited_;
};

void ObserveModules(Module& model, const std::vector<ResolvedUnit>& units,
                    const std::shared_ptr<UnitCopies>& copies) {
  absl::flat_hash_map<std::string, int> unit_of_path;
  for (int i = 0; i < std::ssize(units); ++i) unit_of_path[units[i].path] = i;
  for (Module* module : model.AllModules()) {
    const auto found = unit_of_path.find(module->path());
    const bool is_root = module == &model;
    if (found == unit_of_path.end() && !is_root) continue;
    module->set_observer(
        std::make_shared<UnitObserver>(copies, found == unit_of_path.end() ? -1 : found->second, is_root));
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

// The units as the copies know them; sets the unit of each of their leaves.
std::vector<CopyUnit> MakeCopyUnits(const Module& model, const IntrusivePtr<MeshContext>& context,
                                    const std::vector<Parameter*>& parameters,
                                    const std::vector<ResolvedUnit>& units, Lane lane,
                                    std::vector<int>* unit_of_leaf) {
  std::vector<CopyUnit> copy_units;
  std::map<std::pair<int, int64_t>, std::shared_ptr<const SmallerGroup>> smaller_groups;  // by axis, size
  for (int i = 0; i < std::ssize(units); ++i) {
    CopyUnit unit = {.path = units[i].path,
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

// Of the gradients of all parameters.
std::shared_ptr<GradientBuckets> MakeBuckets(MeshContext& context, const std::vector<Parameter*>& parameters,
                                             const std::vector<int>& unit_of_leaf,
                                             const SchedulerOptions& options) {
  int64_t gradient_bytes = 0;
  std::vector<BucketLeaf> leaves;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterLayouts& layouts = parameters[i]->layouts();
    leaves.push_back({.node = &parameters[i]->leaf(),
                      .path = parameters[i]->path(),
                      .type = parameters[i]->at_rest().type(),
                      .layout = layouts.of_gradient(),
                      .accumulates_unreduced = layouts.accumulates_unreduced,
                      .unit = unit_of_leaf[i]});
    const TensorType& type = leaves.back().type;
    gradient_bytes += type.shape.num_elements() * ItemSize(type.dtype);
  }
  // Ten buckets at least, if each is still worth a collective: otherwise a small model's gradients would move when
  // backward has ended.
  const auto most = static_cast<int64_t>(options.bucket_mb * (1 << 20));
  const int64_t least = LeastBucketBytes(context.mesh(), context.cost_model());
  const BucketOptions of_buckets = {.bucket_bytes = std::min(most, std::max(least, gradient_bytes / 10)),
                                    .lane = options.overlap ? Lane::kGrad : Lane::kInline,
                                    .replica_lane = options.overlap ? Lane::kReplica : Lane::kInline,
                                    .find_unused = options.find_unused};
  return std::make_shared<GradientBuckets>(context, std::move(leaves), of_buckets);
}

}  // namespace

void ScheduleData(Module& model, const IntrusivePtr<MeshContext>& context,
                  const std::vector<ResolvedUnit>& units, const SchedulerOptions& options) {
  if (context->mesh().num_ranks() == 1) return;
  const Lane lane = options.overlap ? Lane::kParam : Lane::kInline;
  const std::vector<Parameter*> parameters = model.AllParameters();
  std::vector<int> unit_of_leaf(parameters.size(), -1);
  const std::vector<CopyUnit> copy_units =
      MakeCopyUnits(model, context, parameters, units, lane, &unit_of_leaf);
  const std::shared_ptr<GradientBuckets> buckets = MakeBuckets(*context, parameters, unit_of_leaf, options);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->leaf().set_sink(buckets, static_cast<int>(i));
    parameters[i]->set_update_lane(lane);
  }
  if (units.empty()) return;

  const auto copies = std::make_shared<UnitCopies>(
      *context, copy_units, UnitCopyOptions{.prefetch = options.prefetch, .overlap = options.overlap});
  int copy = 0;
  for (const ResolvedUnit& unit : units) {
    for (const int parameter : unit.parameters) parameters[parameter]->set_copy_source(copies, copy++);
  }
  buckets->set_observer(UnitGradients(copies, std::move(unit_of_leaf), static_cast<int>(units.size())));
  ObserveModules(model, units, copies);
}

}  // namespace weft
