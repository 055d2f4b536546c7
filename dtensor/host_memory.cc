#include "dtensor/host_memory.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "runtime/comm/queued_work.h"
#include "runtime/tensor/begin_copy.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

bool CopiesBeside(MeshContext& device) { return HasDeviceQueues(*device.allocator()); }

IntrusivePtr<PendingMoves> MakePending(MeshContext& context, Work work) {
  return MakeIntrusive<PendingMoves>(context.state(), LaneWorks{.works = {std::move(work)}});
}

DTensor CopyTo(const IntrusivePtr<MeshContext>& context, const DTensor& x, MemoryKind kind) {
  const MemoryKindGuard guard(*context->allocator(), kind);
  const Tensor& from = x.ToLocal();
  Tensor to = Tensor::Empty(context->allocator(), from.dtype(), from.shape());
  CopyTensor(from, to);
  return DTensor(MakeIntrusive<DTensorImpl>(context, x.layout(), x.type(), std::move(to)));
}

// The copy itself waits for what makes `x`, not the rank's stream; but a value that is written in place, whose next writer may
// be any that shares its memory, is not written to before it has been copied.
DTensor BeginToHost(const DTensor& x, MemoryKind kind) {
  const DTensorImpl& impl = *x.impl();
  const IntrusivePtr<MeshContext> host = impl.context->HostSide();
  PieceToCopy piece = PieceToCopyOf(x);
  const MemoryKindGuard guard(*host->allocator(), kind);
  Tensor to = Tensor::Empty(host->allocator(), piece.from.dtype(), piece.from.shape());
  const bool is_written = static_cast<bool>(impl.writes);
  std::shared_ptr<QueuedBatch> batch =
      BeginCopy(piece.from, to, {.rank = piece.before.empty() || is_written, .join = [&] { piece.Join(); }});
  if (is_written) batch->Join();
  return DTensor(MakeIntrusive<DTensorImpl>(
      host, impl.layout, impl.type, std::move(to),
      MakePending(*host, MakeArrivalWork(std::move(batch), std::move(piece.before)))));
}

// Values on the host that copies still read: nobody is to write to them, but others may read them.
struct ReadByCopies {
  std::deque<IntrusivePtr<PendingMoves>> pending;  // in the order in which the copies run
};

// Those that have not run.
ReadByCopies& ReadByCopiesOf(MeshContext& device) {
  std::shared_ptr<void>& attached = DeviceQueueOf(*device.allocator(), kFromHostQueue).attached();
  if (attached == nullptr) attached = std::make_shared<ReadByCopies>();
  ReadByCopies& reads = *static_cast<ReadByCopies*>(attached.get());
  while (!reads.pending.empty() && reads.pending.front()->Test()) reads.pending.pop_front();
  return reads;
}

const Tensor& ReadableOnHost(const DTensorImpl& x, const ReadByCopies& reads) {
  const auto& pending = reads.pending;
  const bool is_read = std::find(pending.begin(), pending.end(), x.pending()) != pending.end();
  return is_read ? x.piece() : x.Local();
}

// `x` stays as it is until `batch`, which reads it, has run: whoever would write to it, or to a value that shares its log,
// waits (DTensorImpl::Local), as for any pending value.
void KeepUntilRead(MeshContext& device, DTensorImpl& x, std::shared_ptr<QueuedBatch> batch,
                   ReadByCopies& reads) {
  reads.pending.push_back(MakePending(device, MakeArrivalWork(std::move(batch))));
  x.SetPending(reads.pending.back());
}

DTensor BeginToDevice(const IntrusivePtr<MeshContext>& device, const DTensor& x, MemoryKind kind) {
  ReadByCopies& reads = ReadByCopiesOf(*device);
  const Tensor& piece = ReadableOnHost(*x.impl(), reads);
  const Tensor from = piece.IsContiguous() ? piece : CloneTensor(piece, piece.buffer()->allocator());
  const MemoryKindGuard guard(*device->allocator(), kind);
  Tensor to = Tensor::Empty(device->allocator(), from.dtype(), from.shape());
  std::shared_ptr<QueuedBatch> batch = BeginCopy(from, to);
  KeepUntilRead(*device, *x.impl(), batch, reads);
  return DTensor(MakeIntrusive<DTensorImpl>(device, x.layout(), x.type(), std::move(to),
                                            MakePending(*device, MakeQueuedWork(std::move(batch)))));
}

}  // namespace

PieceToCopy PieceToCopyOf(const DTensor& x) {
  const DTensorImpl& impl = *x.impl();
  PieceToCopy piece;
  const bool is_made_by_worker = impl.is_pending() && impl.pending()->lanes().back()->worker != nullptr;
  if (!impl.piece().IsContiguous() || is_made_by_worker) {
    impl.Local();
  } else if (impl.is_pending()) {
    piece.before = impl.pending()->works();
  }
  piece.from =
      impl.piece().IsContiguous() ? impl.piece() : CloneTensor(impl.piece(), impl.context->allocator());
  return piece;
}

bool ComputesOnHost(MeshContext& context) {
  return context.world().allocator()->device().type != DeviceType::kCuda;
}

DTensor ToHost(const DTensor& x, MemoryKind kind) {
  if (x.context()->is_host_side()) return x;
  return CopiesBeside(*x.context()) ? BeginToHost(x, kind) : CopyTo(x.context()->HostSide(), x, kind);
}

DTensor ToDevice(const DTensor& x, MemoryKind kind) {
  if (!x.context()->is_host_side()) return x;
  const IntrusivePtr<MeshContext> device = x.context()->DeviceSide();
  if (CopiesBeside(*device)) return BeginToDevice(device, x, kind);
  DTensor shared(
      MakeIntrusive<DTensorImpl>(device, x.layout(), x.type(), x.impl()->piece(), x.impl()->pending()));
  shared.impl()->ShareWrites(*x.impl());
  return shared;
}

void CopyInto(const DTensor& from, const DTensor& to) {
  DTensorImpl& target = *to.impl();
  const bool goes_to_device = from.dtype() == target.type.dtype && from.context()->is_host_side() &&
                              !target.context->is_host_side() && CopiesBeside(*target.context) &&
                              from.impl()->piece().IsContiguous() && target.piece().IsContiguous();
  if (!goes_to_device) return CopyTensor(from.ToLocal(), target.Local());
  MeshContext& device = *target.context;
  ReadByCopies& reads = ReadByCopiesOf(device);
  std::shared_ptr<QueuedBatch> batch = BeginCopy(ReadableOnHost(*from.impl(), reads), target.Local());
  KeepUntilRead(device, *from.impl(), batch, reads);
  target.SetPending(MakePending(device, MakeQueuedWork(std::move(batch))));
}

DTensor InMemoryOf(const DTensor& x, MeshContext& other) {
  return other.is_host_side() ? ToHost(x) : ToDevice(x);
}

}  // namespace weft
