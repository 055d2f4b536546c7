#include "dtensor/context/mesh_context.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_join.h"
#include "dtensor/context/propagation_cache.h"
#include "dtensor/context/rearrangement_cache.h"
#include "dtensor/context/redistribution_cache.h"
#include "runtime/comm/queued_communicator.h"
#include "runtime/device/pooled_allocator.h"

namespace weft {

constexpr int64_t kKeptRearrangements = 1024;

MeshContext::MeshContext(std::shared_ptr<RankState> state, DeviceMesh mesh, Machine machine,
                         IntrusivePtr<MeshContext> root)
    : state_(std::move(state)),
      allocator_(state_->world().allocator()),
      mesh_(std::move(mesh)),
      root_(std::move(root)),
      is_slice_(mesh_.IsSlice()),
      is_member_(mesh_.Contains(state_->world().rank())),
      cost_model_(mesh_, std::move(machine)),
      kernel_context_{state_->world().pool(), allocator_},
      cache_(std::make_unique<PropagationCache>()),
      redistribution_cache_(std::make_unique<RedistributionCache>()),
      rearrangement_cache_(std::make_unique<RearrangementCache>(kKeptRearrangements)) {
  if (is_member_) coordinate_ = mesh_.CoordinateOf(state_->world().rank());
}

MeshContext::MeshContext(const IntrusivePtr<MeshContext>& device_side, std::shared_ptr<Allocator> allocator)
    : state_(device_side->state_),
      allocator_(std::move(allocator)),
      mesh_(device_side->mesh_),
      root_(device_side->root_),
      device_side_(device_side),
      is_slice_(device_side->is_slice_),
      is_member_(device_side->is_member_),
      coordinate_(device_side->coordinate_),
      cost_model_(device_side->cost_model_),
      kernel_context_{state_->world().pool(), allocator_},
      cache_(std::make_unique<PropagationCache>()),
      redistribution_cache_(std::make_unique<RedistributionCache>()),
      rearrangement_cache_(std::make_unique<RearrangementCache>(kKeptRearrangements)) {}

MeshContext::~MeshContext() {
  if (device_side_ != nullptr) device_side_->host_side_ = nullptr;
}

IntrusivePtr<MeshContext> MeshContext::HostSide() {
  if (is_host_side()) return IntrusivePtr<MeshContext>(this);
  if (host_side_ != nullptr) return IntrusivePtr<MeshContext>(host_side_);
  const std::shared_ptr<Allocator>& memory = world().host_allocator();
  LabelBlocks(*memory, state_->labels());
  IntrusivePtr<MeshContext> made(new MeshContext(IntrusivePtr<MeshContext>(this), memory));
  host_side_ = made.get();
  return made;
}

void MeshContext::ThrowOutside() const {
  const std::string origin = is_slice_ ? absl::StrCat(", a slice of (", mesh_.Root().ToString(), ")") : "";
  Throw(absl::StatusCode::kFailedPrecondition, "rank ", state_->world().rank(), " is not in mesh (",
        mesh_.ToString(), ")", origin, ": it holds nothing there and cannot compute on it");
}

void MeshContext::Warn(const std::string& text) {
  if (const RankState::WarningSink& sink = state().warning_sink(); sink) {
    sink(text);
  } else if (mesh_.ranks()[0] == world().rank()) {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }
}

void MeshContext::CheckPiece(const Tensor& piece, absl::string_view what) {
  WEFT_REQUIRE(piece.defined(), what, ": the piece is undefined (default-constructed)");
  const Device own = allocator()->device();
  const Device given = piece.device();
  WEFT_REQUIRE(given == own, what, ": the piece ", piece.TypeString(), " lies on ",
               DeviceTypeName(given.type), ":", given.index, ", expected this rank's device, ",
               DeviceTypeName(own.type), ":", own.index);
}

const std::shared_ptr<Communicator>& MeshContext::SharedGroup(const AxisList& axes, Lane lane) {
  // What moves the device's bytes moves the host's, too, unless it is a GPU's alone.
  if (is_host_side() && world().allocator()->device().type != DeviceType::kCuda) {
    return device_side_->SharedGroup(axes, lane);
  }
  std::vector<int> key(axes.begin(), axes.end());
  if (!is_member_) ThrowOutside();
  if (is_slice_) {
    std::erase_if(key, [this](int axis) { return axis < mesh_.num_axes() && mesh_.IsFixed(axis); });
    if (root_ != nullptr && !is_host_side())
      return root_->SharedGroup(AxisList(key.begin(), key.end()), lane);
  }
  std::shared_ptr<Communicator>& group = groups_[static_cast<int>(lane)][key];
  if (group == nullptr) {
    const std::string name = absl::StrJoin(
        key, ".", [this](std::string* out, int axis) { absl::StrAppend(out, mesh_.axis_name(axis)); });
    // Communicators order their members by world rank, layouts by coordinate: the same for axes in the mesh's order, whose
    // ranks ascend (CheckRanks).
    const std::vector<int> ranks = mesh_.GroupOf(world().rank(), key);
    for (size_t i = 1; i < ranks.size(); ++i) {
      WEFT_REQUIRE(ranks[i - 1] < ranks[i], "mesh ", mesh_.ToString(), ": axis group ", name, " has ranks [",
                   absl::StrJoin(ranks, ", "),
                   "], expected them to ascend: list the axes in the mesh's order");
    }
    group = is_host_side() ? world().NewHostGroup(name, ranks) : world().NewGroup(name, ranks);
    if (lane != Lane::kInline) group->SetInBackground();
    TakeTurns(*group, state().link_turns(), LanePriority(lane));
  }
  return group;
}

namespace {

void CheckRanks(const World& world, const DeviceMesh& mesh) {
  WEFT_REQUIRE(mesh.num_ranks() <= world.size(), "mesh ", mesh.ToString(), " needs ", mesh.num_ranks(),
               " ranks; the world has ", world.size());
  if (mesh.IsSlice()) return CheckRanks(world, mesh.Root());
  if (mesh == DeviceMesh(mesh.axes())) return;  // ranks 0 to num_ranks() - 1
  for (int rank : mesh.ranks()) {
    WEFT_REQUIRE(rank >= 0 && rank < world.size(), "mesh ", mesh.ToString(), " has rank ", rank,
                 "; the world has ranks 0 to ", world.size() - 1);
  }
  // Then they ascend in the group of any axes, too.
  WEFT_REQUIRE(std::is_sorted(mesh.ranks().begin(), mesh.ranks().end()), "mesh ", mesh.ToString(),
               " has ranks [", absl::StrJoin(mesh.ranks(), ", "),
               "], expected them to ascend in row-major order: list the axis that varies slowest over the "
               "ranks first");
}

// Slices alone may be bound by ranks that are not in them.
void CheckMember(const World& world, const DeviceMesh& mesh) {
  CheckRanks(world, mesh);
  WEFT_REQUIRE(mesh.IsSlice() || mesh.Contains(world.rank()), "rank ", world.rank(), " is not in mesh (",
               mesh.ToString(), ") of ", mesh.num_ranks(), " ranks; the world has ", world.size());
}

// The module path that the rank is in: an error for lack of memory says by it who holds the memory. The
// allocator may outlive the state.
class PathLabels final : public BlockLabels {
 public:
  explicit PathLabels(std::weak_ptr<const RankState> state) : state_(std::move(state)) {}

  int Current() const override {
    const std::shared_ptr<const RankState> state = state_.lock();
    return state == nullptr ? 0 : state->path_id();
  }
  std::string Name(int label) const override {
    const std::shared_ptr<const RankState> state = state_.lock();
    return state == nullptr || label == 0 ? "the root module or none" : state->PathName(label);
  }

 private:
  const std::weak_ptr<const RankState> state_;
};

}  // namespace

IntrusivePtr<MeshContext> Bind(World& world, const DeviceMesh& mesh, const Machine& machine) {
  CheckMember(world, mesh);
  const std::vector<MeshAxis> axes = mesh.Root().axes();
  for (const auto& [name, cost] : machine.axes) {
    const bool is_axis = std::any_of(
        axes.begin(), axes.end(), [&, &wanted = name](const MeshAxis& axis) { return axis.name == wanted; });
    WEFT_REQUIRE(is_axis, "machine: axes.", name, " is no axis of mesh (", mesh.ToString(), ")");
  }
  auto state = std::make_shared<RankState>(world);
  state->set_labels(std::make_shared<PathLabels>(state));
  LabelBlocks(*world.allocator(), state->labels());
  return MakeIntrusive<MeshContext>(std::move(state), mesh, machine);
}

IntrusivePtr<MeshContext> Bind(const IntrusivePtr<MeshContext>& context, const DeviceMesh& mesh) {
  CheckMember(context->world(), mesh);
  return BindPart(context, mesh);
}

IntrusivePtr<MeshContext> BindPart(const IntrusivePtr<MeshContext>& context, const DeviceMesh& mesh) {
  CheckRanks(context->world(), mesh);
  IntrusivePtr<MeshContext> root;
  if (mesh.IsSlice()) {
    const IntrusivePtr<MeshContext>& own = context->root_ != nullptr ? context->root_ : context;
    if (own->mesh() == mesh.Root()) root = own;
  }
  return MakeIntrusive<MeshContext>(context->shared_state(), mesh, context->machine(), std::move(root));
}

}  // namespace weft
