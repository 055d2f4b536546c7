#include "parallel/compression/device_gradients.h"

#include <algorithm>

#include "dtensor/host_memory.h"
#include "runtime/comm/queued_work.h"
#include "runtime/tensor/begin_copy.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

Tensor RowMajor(const Tensor& tensor) {
  return tensor.IsContiguous() ? tensor : CloneTensor(tensor, tensor.buffer()->allocator());
}

}  // namespace

// From the host to the device, of sums that are there at the same time.
struct DeviceGradients::Copies {
  std::vector<std::pair<Tensor, Tensor>> pairs = {};
  std::shared_ptr<const Batches> sent = nullptr;  // of the gradients: no worker is to let go of them last
  std::shared_ptr<QueuedBatch> last = nullptr;    // null: they have not begun

  // Not behind the rank's own work, which may be far ahead: NewPlace.
  void Begin() {
    for (const auto& [from, to] : std::exchange(pairs, {})) {
      last = BeginCopy(RowMajor(from), to, {.rank = false});
    }
  }
};

Tensor DeviceGradients::NewPlace(DType dtype, const Shape& shape) const {
  return Tensor::Empty(device_.allocator(), dtype, shape);
}

void DeviceGradients::Send(const DTensor& gradient, const Tensor& to, GradientBucket& bucket) {
  const DTensorImpl& impl = *gradient.impl();
  const PieceToCopy piece = PieceToCopyOf(gradient);
  sent_.push_back(BeginCopy(piece.from, to, {.join = [&] { piece.Join(); }}));
  // Whoever writes to it next may be any that shares its memory.
  const bool has_others = impl.use_count() > 1 || (impl.writes && impl.writes->use_count() > 1);
  if (impl.writes && has_others) sent_.back()->Join();
  bucket.Run([sent = sent_.back(), &world = device_.world()] {
    sent->Synchronize();
    world.ThrowIfCutOff();
  });
}

IntrusivePtr<PendingMoves> DeviceGradients::Sent() const {
  if (sent_.empty()) return {};
  return MakeIntrusive<PendingMoves>(device_.state(), LaneWorks{.works = {MakeQueuedWork(sent_.back())}});
}

void DeviceGradients::BeginReady() {
  std::erase_if(begun_, [](const Work& begins) { return begins.Test(); });
}

// A reader waits for the sums that were issued before, too, which end before these where they have a lane in common: so
// their copies begin while it waits for the last.
IntrusivePtr<PendingMoves> DeviceGradients::Follow(const PendingMoves& sums,
                                                   const std::shared_ptr<Copies>& copies) {
  LaneWorks own = {.worker = sums.lanes().back()->worker, .works = begun_};
  own.works.insert(own.works.end(), sums.works().begin(), sums.works().end());
  const Work last = sums.works().empty() ? Work() : sums.works().back();
  begun_.push_back(last.Then([copies] { copies->Begin(); }));
  own.works.push_back(begun_.back().Then([copies] { copies->last->Join(); }));
  const PendingMoves::Lanes before(sums.lanes().begin(), sums.lanes().end() - 1);
  return MakeIntrusive<PendingMoves>(device_.state(), std::move(own), before);
}

std::vector<DTensor> DeviceGradients::BringBack(const std::vector<DTensor>& sums,
                                                const std::vector<Tensor>& places) {
  struct Group {
    const PendingMoves* sums = nullptr;
    std::shared_ptr<Copies> copies = {};
    IntrusivePtr<PendingMoves> pending = {};
  };
  const auto sent = std::make_shared<const Batches>(std::exchange(sent_, {}));
  std::vector<Group> groups;
  std::vector<size_t> group_of;
  for (size_t i = 0; i < sums.size(); ++i) {
    const PendingMoves* const pending = sums[i].impl()->pending().get();
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const Group& other) { return other.sums == pending; });
    if (group == groups.end()) {
      auto copies = std::make_shared<Copies>(Copies{.sent = sent});
      group = groups.insert(group, Group{.sums = pending, .copies = std::move(copies)});
    }
    group->copies->pairs.push_back({sums[i].impl()->piece(), places[i]});
    group_of.push_back(group - groups.begin());
  }
  for (Group& group : groups) {
    if (group.sums != nullptr) {
      group.pending = Follow(*group.sums, group.copies);
    } else {
      group.copies->Begin();
      group.copies->last->Join();
    }
  }
  std::vector<DTensor> results;
  for (size_t i = 0; i < sums.size(); ++i) {
    results.push_back(
        DTensor(MakeIntrusive<DTensorImpl>(IntrusivePtr<MeshContext>(&device_), sums[i].layout(),
                                           sums[i].type(), places[i], groups[group_of[i]].pending)));
  }
  return results;
}

}  // namespace weft
