#include "dtensor/host_memory.h"

#include <utility>

#include "runtime/tensor/copy.h"

namespace weft {
namespace {

DTensor CopyTo(const IntrusivePtr<MeshContext>& context, const DTensor& x, MemoryKind kind) {
  const MemoryKindGuard guard(*context->allocator(), kind);
  const Tensor& from = x.ToLocal();
  Tensor to = Tensor::Empty(context->allocator(), from.dtype(), from.shape());
  CopyTensor(from, to);
  return DTensor(MakeIntrusive<DTensorImpl>(context, x.layout(), x.type(), std::move(to)));
}

}  // namespace

bool ComputesOnHost(MeshContext& context) {
  return context.world().allocator()->device().type != DeviceType::kCuda;
}

DTensor ToHost(const DTensor& x, MemoryKind kind) {
  if (x.context()->is_host_side()) return x;
  return CopyTo(x.context()->HostSide(), x, kind);
}

DTensor SavedOnHost(const DTensor& x) {
  const DTensorImpl& impl = *x.impl();
  if (impl.context->is_host_side() || impl.writes || impl.Local().num_bytes() < kLeastOffloadedBytes)
    return x;
  const Tensor& piece = impl.Local();
  const IntrusivePtr<Buffer>& from = piece.buffer();
  const IntrusivePtr<MeshContext> host = impl.context->HostSide();
  if (!from->copy()) {
    const std::shared_ptr<Allocator>& allocator = host->allocator();
    const MemoryKindGuard guard(*allocator, MemoryKind::kSaved);
    const auto to = MakeIntrusive<Buffer>(allocator, from->num_bytes());
    CopyTensor(Tensor::BytesOf(from), Tensor::BytesOf(to));
    from->set_copy(to);
  }
  return DTensor(MakeIntrusive<DTensorImpl>(host, impl.layout, impl.type, piece.On(from->copy())));
}

DTensor ToDevice(const DTensor& x, MemoryKind kind) {
  if (!x.context()->is_host_side()) return x;
  const IntrusivePtr<MeshContext> device = x.context()->DeviceSide();
  if (!ComputesOnHost(*device)) return CopyTo(device, x, kind);
  DTensor shared(
      MakeIntrusive<DTensorImpl>(device, x.layout(), x.type(), x.impl()->piece(), x.impl()->pending()));
  shared.impl()->ShareWrites(*x.impl());
  return shared;
}

DTensor InMemoryOf(const DTensor& x, MeshContext& other) {
  return other.is_host_side() ? ToHost(x) : ToDevice(x);
}

}  // namespace weft
