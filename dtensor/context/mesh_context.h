#ifndef WEFT_DTENSOR_CONTEXT_MESH_CONTEXT_H_
#define WEFT_DTENSOR_CONTEXT_MESH_CONTEXT_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/context/lane.h"
#include "dtensor/context/rank_state.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/machine.h"
#include "mesh/redistribution/cost_model.h"
#include "ops/op/kernel_call.h"
#include "runtime/base/intrusive_ptr.h"
#include "runtime/comm/communicator.h"
#include "runtime/launch/world.h"
#include "runtime/tensor/tensor.h"

namespace weft {

class PropagationCache;
class RearrangementCache;
class RedistributionCache;

// A mesh as one rank sees it: its coordinate, its communicators, and its caches of sharding decisions and of
// redistributions. One per rank and mesh; every DTensor holds a reference. Made by Bind.
//
// On a rank outside of the mesh (a slice, or another part of a model) the context holds nothing: tensors on it are
// absent (DTensor::Absent), and whatever would make one throws, as coordinate() does.
//
// Lifetime: once the World is gone, it and what is on it can only be let go of.
// Threads: the owning rank's thread only.
class MeshContext : public RefCounted<MeshContext> {
 public:
  // `root`: the context of the mesh that `mesh` is a slice of, whose communicators it shares; may be null.
  MeshContext(std::shared_ptr<RankState> state, DeviceMesh mesh, Machine machine,
              IntrusivePtr<MeshContext> root = nullptr);
  ~MeshContext();

  const DeviceMesh& mesh() const { return mesh_; }
  RankState& state() { return *state_; }
  const std::shared_ptr<RankState>& shared_state() const { return state_; }
  World& world() { return state_->world(); }
  // Of the memory that tensors on this context lie in; their kernels are those of its device.
  const std::shared_ptr<Allocator>& allocator() { return allocator_; }

  // The same mesh with tensors in the rank's second memory (World::host_allocator), and what runs on them on the CPU:
  // this context itself, if it is that. Made at its first use.
  IntrusivePtr<MeshContext> HostSide();
  // The same mesh with tensors in the memory of the rank's device.
  IntrusivePtr<MeshContext> DeviceSide() {
    return device_side_ != nullptr ? device_side_ : IntrusivePtr<MeshContext>(this);
  }
  bool is_host_side() const { return device_side_ != nullptr; }
  const CostModel& cost_model() const { return cost_model_; }
  const Machine& machine() const { return cost_model_.machine(); }
  // Bounded; cache().stats() counts hits, misses and evictions. Each is declared by its own header.
  PropagationCache& cache() { return *cache_; }
  RedistributionCache& redistribution_cache() { return *redistribution_cache_; }
  // Rearrangements along one dim, lowered for this rank (dtensor/functions/rearrange.h).
  RearrangementCache& rearrangement_cache() { return *rearrangement_cache_; }
  KernelContext& kernel_context() { return kernel_context_; }

  // One line to the rank state's warning sink, or on stderr from the mesh's first rank.
  void Warn(const std::string& text);

  // Whether this rank is in the mesh; false for some ranks on slices and parts alone.
  bool is_member() const { return is_member_; }

  // Whether a model lies here in part: ranks outside of this mesh have its other stages or parts.
  bool has_part_of_model() const {
    return is_host_side() ? device_side_->has_part_of_model_ : has_part_of_model_;
  }
  void set_has_part_of_model() { has_part_of_model_ = true; }

  // This rank's index along every axis; 0 along the fixed axes of a slice.
  // Errors: FailedPrecondition if this rank is not in the mesh.
  absl::Span<const int64_t> coordinate() const {
    if (!is_member_) ThrowOutside();
    return coordinate_;
  }

  // Errors: InvalidArgument that starts with `what`, if `piece` is undefined or not on this rank's device: a
  //         kernel would read its address as one of its own device.
  void CheckPiece(const Tensor& piece, absl::string_view what);

  // The communicator over `axes`, in which group rank is the row-major index along them; one for each lane.
  // Created at its first use, which every member reaches in the same order; then pooled. A slice has the
  // communicators of its root's context, if it was bound from that: along the remaining axes they are the same.
  // Errors: FailedPrecondition if this rank is not in the mesh.
  Communicator& Group(const AxisList& axes, Lane lane = Lane::kInline) { return *SharedGroup(axes, lane); }
  const std::shared_ptr<Communicator>& SharedGroup(const AxisList& axes, Lane lane);

 private:
  friend IntrusivePtr<MeshContext> BindPart(const IntrusivePtr<MeshContext>& context, const DeviceMesh& mesh);

  MeshContext(const IntrusivePtr<MeshContext>& device_side, std::shared_ptr<Allocator> allocator);

  [[noreturn]] void ThrowOutside() const;

  std::shared_ptr<RankState> state_;
  std::shared_ptr<Allocator> allocator_;
  DeviceMesh mesh_;
  IntrusivePtr<MeshContext> root_;
  IntrusivePtr<MeshContext> device_side_;  // null: this is it
  MeshContext* host_side_ = nullptr;       // while there is one
  bool is_slice_ = false;
  bool is_member_ = true;
  bool has_part_of_model_ = false;  // of a host side: not used
  std::vector<int64_t> coordinate_;
  CostModel cost_model_;
  KernelContext kernel_context_;
  const std::unique_ptr<PropagationCache> cache_;
  const std::unique_ptr<RedistributionCache> redistribution_cache_;
  const std::unique_ptr<RearrangementCache> rearrangement_cache_;
  std::map<std::vector<int>, std::shared_ptr<Communicator>> groups_[kNumLanes];
};

// Binds a mesh to this rank. The first form makes new ambient state, so a program calls it once a rank and
// passes the context on; the second puts another mesh, or a slice of the same, over the same state and machine.
// `machine` is what layouts are chosen by, the same on every rank.
// Errors: InvalidArgument if this rank is not in the mesh, unless that is a slice; if the mesh names a rank that
//         the world lacks, or its ranks do not ascend in row-major order; the machine an axis that the mesh lacks;
//         as Machine::Check.
IntrusivePtr<MeshContext> Bind(World& world, const DeviceMesh& mesh, const Machine& machine = {});
IntrusivePtr<MeshContext> Bind(const IntrusivePtr<MeshContext>& context, const DeviceMesh& mesh);

// The second, of a mesh over any ranks of the world, which this rank need not be among: where a part of a model lies,
// for all ranks of the model.
IntrusivePtr<MeshContext> BindPart(const IntrusivePtr<MeshContext>& context, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_MESH_CONTEXT_H_
