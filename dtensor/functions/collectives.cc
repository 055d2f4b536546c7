#include "dtensor/functions/collectives.h"

#include "runtime/base/error.h"

namespace weft {
namespace {

enum class Kind { kPartial, kShard, kReplicate };

bool Is(Kind kind, const Layout& layout, int axis) {
  switch (kind) {
    case Kind::kPartial:
      return layout.IsPartial(axis);
    case Kind::kShard:
      return layout.IsShard(axis);
    case Kind::kReplicate:
      return !layout.IsPartial(axis) && !layout.IsShard(axis);
  }
  return false;
}

const char* NameOf(Kind kind) {
  return kind == Kind::kPartial ? "Partial" : kind == Kind::kShard ? "Shard" : "Replicate";
}

DTensor MoveAlong(const char* name, const DTensor& x, absl::string_view axis_name, Kind from,
                  const Placement& to) {
  WEFT_REQUIRE(x.defined(), name, ": the tensor is undefined (default-constructed)");
  const DeviceMesh& mesh = x.context()->mesh();
  const int axis = mesh.AxisIndex(axis_name);
  // Along an axis of one rank every placement is the same.
  WEFT_REQUIRE(Is(from, x.layout(), axis) || mesh.axis_size(axis) == 1, name, ": expected a tensor that is ",
               NameOf(from), " along axis '", axis_name, "', got ", x.ToString());
  return x.Redistribute(x.layout().PlacedAlong(axis, to));
}

Placement ShardOf(const char* name, const DTensor& x, int dim) {
  WEFT_REQUIRE(dim >= -x.ndim() && dim < x.ndim(), name, ": ", x.ToString(), " has no dim ", dim,
               "; expected -", x.ndim(), " to ", x.ndim() - 1);
  return Shard(dim < 0 ? dim + x.ndim() : dim);
}

}  // namespace

int64_t AxisSize(const MeshContext& context, absl::string_view axis) {
  return context.mesh().axis_size(context.mesh().AxisIndex(axis));
}

int64_t RankAlong(MeshContext& context, absl::string_view axis) {
  return context.coordinate()[context.mesh().AxisIndex(axis)];
}

Communicator& AxisGroup(MeshContext& context, absl::string_view axis) {
  return context.Group({context.mesh().AxisIndex(axis)});
}

DTensor AllReduce(const DTensor& x, absl::string_view axis) {
  return MoveAlong("AllReduce", x, axis, Kind::kPartial, Replicate());
}

DTensor ReduceScatter(const DTensor& x, absl::string_view axis, int dim) {
  return MoveAlong("ReduceScatter", x, axis, Kind::kPartial, ShardOf("ReduceScatter", x, dim));
}

DTensor AllGather(const DTensor& x, absl::string_view axis) {
  return MoveAlong("AllGather", x, axis, Kind::kShard, Replicate());
}

DTensor AllToAll(const DTensor& x, absl::string_view axis, int dim) {
  return MoveAlong("AllToAll", x, axis, Kind::kShard, ShardOf("AllToAll", x, dim));
}

DTensor CopyToRegion(const DTensor& x, absl::string_view axis) {
  return MoveAlong("CopyToRegion", x, axis, Kind::kReplicate, Replicate());
}

DTensor ScatterToRegion(const DTensor& x, absl::string_view axis, int dim) {
  return MoveAlong("ScatterToRegion", x, axis, Kind::kReplicate, ShardOf("ScatterToRegion", x, dim));
}

DTensor ReduceFromRegion(const DTensor& x, absl::string_view axis) {
  return MoveAlong("ReduceFromRegion", x, axis, Kind::kPartial, Replicate());
}

DTensor GatherFromRegion(const DTensor& x, absl::string_view axis) {
  return MoveAlong("GatherFromRegion", x, axis, Kind::kShard, Replicate());
}

}  // namespace weft
