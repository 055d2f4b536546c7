#include "dtensor/tape/saved_buffer.h"

#include <utility>

#include "dtensor/host_memory.h"
#include "runtime/base/error.h"
#include "runtime/device/pooled_allocator.h"
#include "runtime/tensor/begin_copy.h"
#include "runtime/tensor/copy.h"

namespace weft {

// Those of a rank's GPU.
class SavedBuffers : public std::enable_shared_from_this<SavedBuffers> {
 public:
  static SavedBuffers& Of(Allocator& device) {
    std::shared_ptr<void>& attached = DeviceQueueOf(device, kToHostQueue).attached();
    if (attached == nullptr) attached = std::make_shared<SavedBuffers>();
    return *static_cast<SavedBuffers*>(attached.get());
  }

  void Save(SavedBuffer& saved, const IntrusivePtr<Buffer>& from);
  IntrusivePtr<Buffer> Fetch(SavedBuffer& saved, const std::shared_ptr<Allocator>& device);
  void Remove(SavedBuffer& saved) noexcept;

 private:
  static void Begin(SavedBuffer& saved, const std::shared_ptr<Allocator>& device);
  static bool BeginIfThereIsMemory(SavedBuffer& saved, const std::shared_ptr<Allocator>& device);

  SavedBuffer* last_ = nullptr;
};

SavedBuffer::~SavedBuffer() {
  if (all_ != nullptr) all_->Remove(*this);
}

IntrusivePtr<SavedBuffer> SavedBuffer::Of(const IntrusivePtr<Buffer>& from, Allocator& device,
                                          const std::shared_ptr<Allocator>& host) {
  const auto known = std::static_pointer_cast<SavedBuffer*>(from->copy().lock());
  if (known != nullptr) return IntrusivePtr<SavedBuffer>(*known);
  const MemoryKindGuard guard(*host, MemoryKind::kSaved);
  auto saved = MakeIntrusive<SavedBuffer>();
  saved->host_ = MakeIntrusive<Buffer>(host, from->num_bytes());
  if (HasDeviceQueues(device)) {
    SavedBuffers::Of(device).Save(*saved, from);
  } else {
    CopyTensor(Tensor::BytesOf(from), Tensor::BytesOf(saved->host_));
  }
  from->set_copy(saved->self_);
  return saved;
}

void SavedBuffers::Save(SavedBuffer& saved, const IntrusivePtr<Buffer>& from) {
  saved.saved_ = BeginCopy(Tensor::BytesOf(from), Tensor::BytesOf(saved.host_));
  saved.all_ = shared_from_this();
  saved.earlier_ = last_;
  if (last_ != nullptr) last_->later_ = &saved;
  last_ = &saved;
}

void SavedBuffers::Remove(SavedBuffer& saved) noexcept {
  if (saved.earlier_ != nullptr) saved.earlier_->later_ = saved.later_;
  (saved.later_ != nullptr ? saved.later_->earlier_ : last_) = saved.earlier_;
}

void SavedBuffers::Begin(SavedBuffer& saved, const std::shared_ptr<Allocator>& device) {
  const MemoryKindGuard guard(*device, MemoryKind::kSaved);
  auto here = MakeIntrusive<Buffer>(device, saved.host_->num_bytes());
  saved.fetched_ =
      BeginCopy(Tensor::BytesOf(saved.host_), Tensor::BytesOf(here), {.join = [&] { saved.saved_->Join(); }});
  saved.device_ = std::move(here);  // last: an error leaves it as it was
}

// True if there was memory: the value that is wanted is there without it. The pool gives nothing back to the device for it, which
// would cost more than what is fetched ahead saves.
bool SavedBuffers::BeginIfThereIsMemory(SavedBuffer& saved, const std::shared_ptr<Allocator>& device) {
  if (!HasAtHand(*device, saved.host_->num_bytes())) return false;
  try {
    Begin(saved, device);
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kResourceExhausted) throw;
    return false;
  }
  return true;
}

IntrusivePtr<Buffer> SavedBuffers::Fetch(SavedBuffer& saved, const std::shared_ptr<Allocator>& device) {
  if (!saved.device_) Begin(saved, device);
  int64_t ahead_bytes = 0;
  for (SavedBuffer* next = saved.earlier_; next != nullptr && ahead_bytes < kMostFetchedBytes;
       next = next->earlier_) {
    if (next->was_read_) continue;
    if (!next->device_ && !BeginIfThereIsMemory(*next, device)) break;
    ahead_bytes += next->host_->num_bytes();
  }
  saved.fetched_->Join();
  saved.was_read_ = true;
  const bool is_shared = saved.use_count() > 1;
  return is_shared ? saved.device_ : std::exchange(saved.device_, nullptr);
}

DTensor SaveOnHost(const DTensor& x, IntrusivePtr<SavedBuffer>* there) {
  const DTensorImpl& impl = *x.impl();
  *there = nullptr;
  if (impl.context->is_host_side() || impl.writes || impl.Local().num_bytes() < kLeastOffloadedBytes)
    return x;
  const Tensor& piece = impl.Local();
  const IntrusivePtr<MeshContext> host = impl.context->HostSide();
  *there = SavedBuffer::Of(piece.buffer(), *impl.context->allocator(), host->allocator());
  return DTensor(MakeIntrusive<DTensorImpl>(host, impl.layout, impl.type, piece.On((*there)->host())));
}

DTensor FetchSaved(const DTensor& saved, SavedBuffer& there) {
  const IntrusivePtr<MeshContext> device = saved.context()->DeviceSide();
  if (!HasDeviceQueues(*device->allocator())) return ToDevice(saved, MemoryKind::kSaved);
  const IntrusivePtr<Buffer> buffer =
      SavedBuffers::Of(*device->allocator()).Fetch(there, device->allocator());
  return DTensor(
      MakeIntrusive<DTensorImpl>(device, saved.layout(), saved.type(), saved.impl()->piece().On(buffer)));
}

}  // namespace weft
