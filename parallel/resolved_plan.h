#ifndef WEFT_PARALLEL_RESOLVED_PLAN_H_
#define WEFT_PARALLEL_RESOLVED_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "parallel/buffer_splits.h"
#include "parallel/compression/parameter_communication.h"
#include "parallel/parts.h"
#include "parallel/plan.h"
#include "parallel/style.h"

namespace weft {

// What a plan means for one model on one mesh: resolved, before anything is allocated. A value.
struct ResolvedModule {
  std::string path;
  // Of the entries that name it, in the order of the plan; of a style without an axis, one with the fields of all
  // entries that reach it, the later winning.
  std::vector<Style> styles = {};
  ModuleBorder border = {};
  std::vector<int> stages = {};  // of a pipeline that run it, ascending; empty: all
  int part = -1;                 // of the model's parts that it lies on; -1: on the whole mesh
  ModulePlace place = ModulePlace::kAround;

  bool operator==(const ResolvedModule&) const = default;
};
struct ResolvedParameter {
  std::string path;
  std::vector<Style> styles =
      {};  // that reach it, in the order of the plan: of its module, or of one around it
  ParameterLayouts layouts = {};
  ParameterMemory memory = {};
  std::optional<DType> compute_dtype = std::nullopt;  // the run's if not given
  std::optional<DType> reduce_dtype = std::nullopt;   // of its gradient; that at rest if not given
  std::vector<int> stages = {};                       // of a pipeline that have it, ascending; empty: all
  int part = -1;                                      // of the model's parts that has it; -1: all ranks have
  ParameterCommunication communication = {};          // by which method its gradient is summed

  bool operator==(const ResolvedParameter&) const = default;
};
// Parameters that rest split and are gathered together for compute.
struct ResolvedUnit {
  std::string path;             // of a module
  std::vector<int> parameters;  // indices into ResolvedPlan::parameters, ascending
  Reshard reshard = Reshard::kAlways;
  // Between forward and backward it rests in groups of so many neighbours along the axis; 0: nowhere.
  int64_t reshard_to = 0;
  int reshard_axis = -1;

  bool operator==(const ResolvedUnit&) const = default;
};
// How a pipeline cuts the model.
struct ResolvedPipeline {
  int axis = 0;
  std::vector<int> stage_ranks = {};     // the index along the axis of each stage's rank
  std::vector<int> first_segments = {};  // of each stage, and behind the last: stage s runs [s] up to [s + 1]

  int num_stages() const { return static_cast<int>(stage_ranks.size()); }
  bool operator==(const ResolvedPipeline&) const = default;
};
struct ResolvedPlan {
  std::vector<ResolvedModule> modules;        // every module of the model, in order of registration
  std::vector<ResolvedParameter> parameters;  // every parameter, in order of registration
  std::vector<ResolvedBuffer> buffers;        // every buffer, likewise
  // Each module that FullyShard marks, or wraps by size or type, and that owns a parameter whose layout at rest differs from
  // compute's; in order of registration. A parameter is in the innermost.
  std::vector<ResolvedUnit> units;
  std::optional<ResolvedPipeline> pipeline = std::nullopt;
  std::optional<ResolvedParts> parts = std::nullopt;  // on which modules lie, where the plan places them (On)

  // The axis along which ranks have different parts of the model: stages, or those of On; -1 if none.
  int spread_axis() const;
  // Whether the rank at that index along that axis has some of the module or parameter; every rank, where all have all.
  bool IsOn(const ResolvedModule& module, int64_t index) const {
    return IsOn(module.stages, module.part, index);
  }
  bool IsOn(const ResolvedParameter& parameter, int64_t index) const {
    return IsOn(parameter.stages, parameter.part, index);
  }

  bool operator==(const ResolvedPlan&) const = default;

  // Sets dtypes and memory as the styles say that reach each module, buffer and parameter: a step of ResolvePlan.
  void TakeDTypes();

  // Whether a part of the model has a compute dtype of its own.
  bool HasPrecision() const;

  // A table: parameter, styles that reach it, shape, its four layouts, elements at rest per rank (largest); the stages
  // that have it, or the part. Then each buffer, which has one layout.
  std::string ToTable(Module& model, const DeviceMesh& mesh) const;

 private:
  bool IsOn(const std::vector<int>& stages, int part, int64_t index) const;
};

// Resolves `plan` against the model's tree. Allocates nothing, communicates nothing.
//
// Errors: InvalidArgument naming the entry: a path that matches no module or parameter (with the nearest that
//         exists), an axis that the mesh lacks, a style on a module that declares no dim for it, two styles that split
//         one parameter over the same axis, a head count that the axis does not divide, a dim that a
//         parameter lacks, a type that no module below has, a smaller group that does not divide its axis; stages
//         with reshard_to, or with units and a prefetch above the default; as CutIntoStages, DivideIntoParts and
//         CommunicationOf; a plan with stages and parts.
ResolvedPlan ResolvePlan(Module& model, const DeviceMesh& mesh, const Plan& plan);

}  // namespace weft

#endif  // WEFT_PARALLEL_RESOLVED_PLAN_H_
