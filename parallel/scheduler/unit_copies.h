#ifndef WEFT_PARALLEL_SCHEDULER_UNIT_COPIES_H_
#define WEFT_PARALLEL_SCHEDULER_UNIT_COPIES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/tape/copy_source.h"
#include "parallel/scheduler/smaller_group.h"

namespace weft {

// Parameters that are gathered together: those of one module.
struct CopyUnit {
  std::string path;
  std::vector<const Parameter*> parameters;
  bool is_root = false;  // kept from its first use in forward to its last in backward
  bool reshards = true;  // false: copies stay until the parameters change
  // Where parts of the copies rest from forward on, until backward has gathered them again; null: nowhere.
  std::shared_ptr<const SmallerGroup> rests_in = nullptr;
  int axis = -1;  // that `rests_in` divides
};

struct UnitCopyOptions {
  int prefetch = 1;     // units gathered ahead of their use
  bool overlap = true;  // gathers ahead of use run while the rank computes
};

// The copies of sharded parameters that compute reads, gathered a unit at a time: one RedistributeEach when the
// first of the unit is asked for, in forward and again in backward. While a unit is used, the next ones are
// gathered: in the order in which the last forward, or backward, first used them. The unit that the last forward
// used first, and those that would be gathered while it is used, are gathered ahead of the next step, each when an update has
// changed all of its parameters that are trained; where none is, when an update begins. Copies are
// let go when forward leaves the unit's module, and in backward when all of the unit's gradients are there. A unit
// may keep a part of them in between, and gather those within a smaller group. A model that is only run forward, under
// NoGradGuard or with no parameter that is trained, has the order of its last forward, which lets go of all units that reshard.
//
// Where a program departs from the order that it had, uses a unit twice, evaluates between steps, or changes
// parameters after the update, values are right all the same: a unit that is not there is gathered; one that was
// gathered ahead and not used, or is stale, is let go at the end of the pass or at its next use, with a warning
// that names it, once. What writes a parameter waits for a gather that still reads it.
//
// Memory:  whole parameters of the root unit, and of (1 + prefetch) inner units at most; with a unit that does
//          not reshard, its own in addition. Parts that rest in smaller groups, until their gradients are there.
// Cost:    per use of a unit one all-gather of each parameter's bytes in the compute dtype, under purpose
//          `param` and the unit's path.
// Errors:  InvalidArgument on every rank where ranks gather different units at one time, as far as their backend
//          compares calls (CommOptions::subject).
// Source:  Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.
// Threads: the rank's thread; every rank alike.
class UnitCopies final : public CopySource {
 public:
  UnitCopies(MeshContext& context, std::vector<CopyUnit> units, const UnitCopyOptions& options);

  // Copies are numbered through all units in their order.
  // Errors: FailedPrecondition if the parameter is no more.
  DTensor Copy(int copy) override;
  void Updated(int copy) override;
  // By the unit's place in the order of the last forward.
  int ReadOrder(int copy) const override;
  void Forget(int copy) noexcept override;

  // From Hold to Release a unit is here, whatever the program does: gathered ahead at once, and kept. Beyond the number
  // of units that are otherwise here.
  void Hold(int unit);
  void Release(int unit) noexcept;

  // What the program does: forward has left a unit's module (the root's ends a forward); backward has all
  // gradients of a unit; a backward pass has ended. `is_trained`: some parameter of the model is, in a unit or not.
  void LeaveModule(int unit) noexcept;
  void EndForward(bool is_trained) noexcept;
  void DeliveredAll(int unit) noexcept;
  void EndPass();

 private:
  struct Unit {
    CopyUnit spec;  // its parameters: those that are left
    int path_id = 0;
    std::vector<uint32_t> subjects = {};  // of the parameters, as EachMove's
    std::vector<DTensor> copies = {};     // empty: not here
    std::vector<DTensor> parts = {};      // of the copies, in the smaller group
    std::vector<int64_t> versions = {};   // of the parameters that they were made of, the last time
    int64_t whole_bytes = 0;              // of all copies
    int64_t packed_bytes = 0;             // of those whose gather is unpacked from a buffer
    bool is_used = false;                 // since they were made
    bool is_held = false;
    int64_t last_use = 0;
  };

  static void MeasureWhole(Unit& unit);
  bool IsCurrent(const Unit& unit) const;
  // Whether its copies go when the program is done with them.
  static bool Reshards(const Unit& unit) { return unit.spec.reshards && !unit.is_held; }
  bool IsHere(const Unit& unit) const { return !unit.copies.empty() && IsCurrent(unit); }
  void Use(int index);
  void Bring(int index, bool ahead) {
    if (!IsHere(units_[index])) BringAnew(index, ahead);
  }
  void BringAnew(int index, bool ahead);
  void Gather(int index, bool ahead);
  void GatherForNextStep(int index);
  void GatherFromRest(Unit& unit, Lane lane);
  void GatherFromParts(Unit& unit, Lane lane);
  void KeepParts(Unit& unit);
  void MakeRoom(int index);
  void Prefetch(int index);
  using UnitList = absl::InlinedVector<int, 4>;
  UnitList UnitsAhead(int index) const;
  void DropUnused(Unit& unit, absl::string_view why);
  void Drop(Unit& unit) noexcept;

  MeshContext& context_;
  const UnitCopyOptions options_;
  std::vector<Unit> units_;
  std::vector<std::pair<int, int>> places_;  // of each copy: unit, number in it (< 0: gone)
  // Units in the order of their first use in a forward, and in a backward: the last one's, and this one's.
  std::vector<int> forward_order_, backward_order_;
  std::vector<int> this_forward_, this_backward_;
  std::vector<int> this_evaluation_;  // of a forward that nothing differentiates
  int in_use_ = -1;                   // the unit that was asked for last
  int64_t num_uses_ = 0;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_UNIT_COPIES_H_
