#include "parallel/scheduler/smaller_group.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A name that no axis has.
std::string FreeName(const DeviceMesh& mesh, std::string name) {
  while (mesh.FindAxis(name) >= 0) name += "_";
  return name;
}

DeviceMesh SplitAxis(const DeviceMesh& mesh, int axis, int64_t size) {
  std::vector<MeshAxis> axes = mesh.axes();
  const std::string name = axes[axis].name;
  WEFT_REQUIRE(size > 1 && size < axes[axis].size && axes[axis].size % size == 0, "a group of ", size,
               " along axis '", name, "' of size ", axes[axis].size,
               ": expected a divisor above 1 and below the axis's size");
  axes[axis] = {FreeName(mesh, name + "_groups"), axes[axis].size / size};
  axes.insert(axes.begin() + axis + 1, {FreeName(mesh, name + "_members"), size});
  return DeviceMesh(std::move(axes), mesh.ranks());
}

}  // namespace

SmallerGroup::SmallerGroup(const IntrusivePtr<MeshContext>& context, int axis, int64_t size, Lane lane)
    : outer_(context), axis_(axis), inner_(Bind(context, SplitAxis(context->mesh(), axis, size))) {
  inner_->Group({axis_ + 1});
  inner_->Group({axis_ + 1}, lane);
}

Layout SmallerGroup::Inside(const Layout& whole) const {
  WEFT_REQUIRE(whole.IsReplicate(axis_), "layout ", whole.ToString(outer_->mesh()), " is not whole along '",
               outer_->mesh().axis_name(axis_), "'");
  Layout inside(whole.ndim(), inner_->mesh().num_axes());
  const auto inner_axis = [&](int axis) { return axis > axis_ ? axis + 1 : axis; };
  for (int dim = 0; dim < whole.ndim(); ++dim) {
    for (const int axis : whole.ShardAxes(dim)) inside = inside.WithShard(inner_axis(axis), dim);
  }
  for (const int axis : whole.PartialAxes()) {
    inside = inside.WithPartial(inner_axis(axis), whole.partial_op(axis));
  }
  return inside;
}

DTensor SmallerGroup::PartOf(const DTensor& whole, int dim) const {
  const NoGradGuard no_grad(inner_->state());
  const Layout inside = Inside(whole.layout());
  const DTensor here = DTensor::FromLocal(inner_, whole.ToLocal(), inside, whole.shape());
  const Layout part = inside.WithShard(axis_ + 1, dim);
  return DTensor::FromLocal(inner_, CloneTensor(here.Redistribute(part).ToLocal(), inner_->allocator()), part,
                            whole.shape());
}

DTensor SmallerGroup::Outside(const DTensor& gathered, const Layout& layout) const {
  const DTensorImpl& impl = *gathered.impl();
  return DTensor(MakeIntrusive<DTensorImpl>(outer_, layout, impl.type, impl.piece(), impl.pending()));
}

}  // namespace weft
