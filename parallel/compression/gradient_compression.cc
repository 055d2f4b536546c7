#include "parallel/compression/gradient_compression.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "dtensor/call/execute.h"
#include "dtensor/redistribute_each.h"
#include "mesh/shard_math.h"
#include "ops/elementwise/cast.h"
#include "parallel/compression/methods/values.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/device/device_queue.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// What a rank's term counts for in a sum.
double WeightOf(const Layout& before, const Layout& arriving, const DeviceMesh& mesh) {
  double weight = 1;
  for (const int axis : before.PartialAxes()) {
    if (arriving.partial_op(axis) == ReduceOp::kAvg) weight /= static_cast<double>(mesh.axis_size(axis));
  }
  return weight;
}

void Multiply(const Tensor& tensor, double factor) {
  OnValues(tensor, [&](auto values) {
    for (auto& value : values) value *= factor;
  });
}

}  // namespace

std::unique_ptr<GradientCompression> GradientCompression::Make(MeshContext& context,
                                                               std::vector<CompressedLeaf> leaves) {
  auto compression =
      std::unique_ptr<GradientCompression>(new GradientCompression(context, std::move(leaves)));
  return compression->compressors_.empty() ? nullptr : std::move(compression);
}

GradientCompression::GradientCompression(MeshContext& context, std::vector<CompressedLeaf> leaves)
    : context_(context), host_(&context), leaves_(leaves.size()) {
  const DeviceType device = context.allocator()->device().type;
  for (size_t i = 0; i < leaves.size(); ++i) {
    Leaf& leaf = leaves_[i];
    leaf.spec = std::move(leaves[i]);
    const CommunicationMethod& method = leaf.spec.communication.method;
    if (!leaf.spec.communication.compresses()) continue;
    leaf.levels = SumLevelsOf(leaf.spec, context.mesh());
    if (leaf.levels.empty()) continue;
    const bool has_copies = HasDeviceQueues(*context.allocator());
    WEFT_REQUIRE(device == DeviceType::kCpu || has_copies, "Communication(", method.ToString(), ") on '",
                 leaf.spec.path, "': gradients are compressed on CPUs and beside GPUs; this rank's lie on ",
                 DeviceTypeName(device));
    if (has_copies && !device_gradients_) {
      host_ = context.HostSide();
      device_gradients_.emplace(context);
    }
    leaf.dtype = leaf.spec.type.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    for (const SumLevel& level : leaf.levels) leaf.compressors.push_back(CompressorOf(level.method));
    leaf.state = MakeCompressionState(*host_, leaf.spec, leaf.levels, leaf.compressors, leaf.dtype);
  }
}

const Compressor* GradientCompression::CompressorOf(const CommunicationMethod& method) {
  std::unique_ptr<const Compressor>& compressor = compressors_[method.ToString()];
  if (compressor == nullptr) compressor = FindCompressor(method.name).make(method);
  return compressor.get();
}

bool GradientCompression::Takes(int leaf, const Layout& arriving) const {
  const Leaf& own = leaves_[leaf];
  if (own.levels.empty()) return false;
  const AxisList axes = own.levels[0].before.PartialAxes();
  return std::all_of(axes.begin(), axes.end(), [&](int axis) {
    return arriving.IsPartial(axis) &&
           (arriving.partial_op(axis) == ReduceOp::kSum || arriving.partial_op(axis) == ReduceOp::kAvg);
  });
}

// In the dtype of the sums, and with everything done that other axes lack.
DTensor GradientCompression::Prepare(const Leaf& leaf, const SumLevel& level, DTensor gradient,
                                     Lane lane) const {
  if (gradient.dtype() != leaf.dtype) gradient = Execute(kCast, {gradient}, {.dtype = leaf.dtype});
  Layout before = level.before;
  for (const int axis : before.PartialAxes()) {
    before = before.WithPartial(axis, gradient.layout().partial_op(axis));
  }
  if (gradient.layout() == before) return gradient;
  return RedistributeEach({EachMove{.source = gradient, .to = before}}, lane)[0];
}

// In the gradient's memory, if it lies on the host and nobody else has it; otherwise in a copy, which is made behind what is
// still under way.
GradientPart GradientCompression::MakePart(const Leaf& leaf, int index, double factor,
                                           const DTensor& prepared, GradientBucket& bucket) {
  const SumLevel& level = leaf.levels[index];
  const DTensorImpl& impl = *prepared.impl();
  const bool is_on_host = IsOnHost(prepared);
  const bool waits = is_on_host && bucket.options().worker == nullptr;
  GradientPart part = {.path = StreamPathOf(context_, leaf.spec, level, index),
                       .gradient = waits ? impl.Local() : impl.piece()};
  const bool is_alone = is_on_host && impl.use_count() == 1 && !impl.writes && !impl.is_pending() &&
                        part.gradient.buffer()->use_count() == 2 && part.gradient.IsContiguous();
  if (!is_alone) {
    const Tensor from = part.gradient;
    part.gradient = Tensor::Empty(host_->allocator(), leaf.dtype, from.shape());
    if (is_on_host) {
      bucket.Run([from, to = part.gradient] { CopyTensor(from, to); });
    } else {
      device_gradients_->Send(prepared, part.gradient, bucket);
    }
  }
  if (factor != 1) bucket.Run([gradient = part.gradient, factor] { Multiply(gradient, factor); });
  for (const CompressorState& kept : leaf.compressors[index]->State(part.gradient.shape())) {
    const std::string name = CompressionStateName(leaf.spec, index, kept.name);
    const std::vector<StateEntry>& state = leaf.state[index];
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const StateEntry& entry) { return entry.name == name; });
    WEFT_CHECK(found != state.end(), name);
    part.state.push_back(found->tensor.ToLocal());
  }
  if (!level.scatters) return part;
  part.boxes = BoxesOf(context_, leaf.spec, level, bucket.group().ranks());
  const ShardBox own = LocalBox(leaf.spec.type.shape, level.after, context_.mesh(), context_.coordinate());
  part.owned = Tensor::Empty(host_->allocator(), leaf.dtype, own.shape);
  return part;
}

// On the device, for the sums at rest.
std::vector<Tensor> GradientCompression::NewPlaces(const Arrived& gradients) const {
  std::vector<Tensor> places;
  for (const ArrivedGradient& arrived : gradients) {
    const Leaf& leaf = leaves_[arrived.leaf];
    const Shape& whole = leaf.spec.type.shape;
    const ShardBox own = LocalBox(whole, leaf.spec.layout, context_.mesh(), context_.coordinate());
    places.push_back(device_gradients_->NewPlace(leaf.dtype, own.shape));
  }
  return places;
}

std::vector<DTensor> GradientCompression::Reduce(std::vector<ArrivedGradient> gradients, Lane lane,
                                                 Lane replica_lane) {
  if (!std::exchange(is_used_, true)) under_way_.clear();
  const MemoryKindGuard kind(*host_->allocator(), context_.allocator()->kind());
  std::vector<Tensor> places;
  if (device_gradients_) {
    device_gradients_->BeginReady();
    places = NewPlaces(gradients);
  }
  std::vector<int> leaves;
  for (const ArrivedGradient& arrived : gradients) leaves.push_back(arrived.leaf);
  std::vector<DTensor> sums = ReduceLevel(std::move(gradients), /*level=*/0, lane);
  first_sums_ = lane == Lane::kInline ? nullptr
                : device_gradients_   ? device_gradients_->Sent()
                                      : under_way_.back();
  Arrived boxes;
  std::vector<size_t> of_boxes;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (leaves_[leaves[i]].levels.size() == 1) continue;
    boxes.push_back({leaves[i], std::exchange(sums[i], DTensor())});
    of_boxes.push_back(i);
  }
  std::vector<DTensor> of_replicas = ReduceLevel(std::move(boxes), /*level=*/1, replica_lane);
  for (size_t i = 0; i < of_boxes.size(); ++i) sums[of_boxes[i]] = std::move(of_replicas[i]);
  // Where another axis cuts what the owners' boxes are cut of.
  for (size_t i = 0; i < sums.size(); ++i) {
    const CompressedLeaf& leaf = leaves_[leaves[i]].spec;
    if (sums[i].layout() == leaf.layout) continue;
    const Lane last = leaves_[leaves[i]].levels.size() == 1 ? lane : replica_lane;
    sums[i] = RedistributeEach({EachMove{.source = sums[i], .to = leaf.layout}}, last)[0];
  }
  return device_gradients_ ? device_gradients_->BringBack(sums, places) : sums;
}

std::vector<DTensor> GradientCompression::ReduceLevel(Arrived gradients, int index, Lane lane) {
  using Key = std::tuple<const Compressor*, AxisList, bool, DType>;
  std::vector<std::pair<Key, std::vector<size_t>>> buckets;  // in the order of their first gradients
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Leaf& leaf = leaves_[gradients[i].leaf];
    const SumLevel& level = leaf.levels[index];
    const Key key = {leaf.compressors[index], level.axes, level.scatters, leaf.dtype};
    auto found =
        std::find_if(buckets.begin(), buckets.end(), [&](const auto& other) { return other.first == key; });
    if (found == buckets.end()) found = buckets.insert(found, {key, {}});
    found->second.push_back(i);
  }
  std::vector<DTensor> sums(gradients.size());
  for (const auto& [key, members] : buckets) {
    Arrived some;
    for (const size_t i : members) some.push_back(std::move(gradients[i]));
    std::vector<DTensor> of_bucket = ReduceBucket(std::move(some), index, lane);
    for (size_t i = 0; i < members.size(); ++i) sums[members[i]] = std::move(of_bucket[i]);
  }
  return sums;
}

std::vector<DTensor> GradientCompression::ReduceBucket(Arrived gradients, int index, Lane lane) {
  RankState& state = context_.state();
  const SumLevel& first = leaves_[gradients[0].leaf].levels[index];
  CommOptions options = {.tag = state.tag(), .subject = SubjectOf(gradients)};
  if (lane != Lane::kInline) {
    options.async = true;
    options.worker = &state.LaneWorker(lane);
  }
  const auto bucket = std::make_shared<GradientBucket>(host_->SharedGroup(first.axes, lane), options,
                                                       host_->allocator(), state.seed(), round_);
  LaneWorks own = {.worker = options.worker};
  PendingMoves::Lanes before;  // of other lanes
  for (ArrivedGradient& arrived : gradients) {
    const Leaf& leaf = leaves_[arrived.leaf];
    const double weight = WeightOf(leaf.levels[index].before, arrived.gradient.layout(), context_.mesh());
    const double factor = index == 0 ? weight / scale_ : weight;
    const DTensor prepared = Prepare(leaf, leaf.levels[index], std::move(arrived.gradient), lane);
    if (options.worker != nullptr && IsOnHost(prepared) && prepared.impl()->is_pending()) {
      const PendingMoves::Lanes& lanes = prepared.impl()->pending()->lanes();
      before.insert(before.end(), lanes.begin(), lanes.end() - 1);
      if (lanes.back()->worker == options.worker) {  // it comes before what is issued now
        own.works.insert(own.works.end(), lanes.back()->works.begin(), lanes.back()->works.end());
      } else {
        before.push_back(lanes.back());
        bucket->Run([other = lanes.back()] {
          for (const Work& work : other->works) work.WaitOnWorker();
        });
      }
    }
    bucket->parts().push_back(MakePart(leaf, index, factor, prepared, *bucket));
  }
  const Compressor& compressor = *leaves_[gradients[0].leaf].compressors[index];
  bucket->Add(first.scatters ? compressor.ReduceScatter(bucket) : compressor.Reduce(bucket));
  std::vector<Tensor> sums;
  for (const GradientPart& part : bucket->parts())
    sums.push_back(first.scatters ? part.owned : part.gradient);
  for (size_t i = 0; i < sums.size() && scale_ != 1; ++i) {
    if (index + 1 < std::ssize(leaves_[gradients[i].leaf].levels)) continue;
    bucket->Run([sum = sums[i], scale = scale_] { Multiply(sum, scale); });
  }
  own.works.insert(own.works.end(), bucket->works().begin(), bucket->works().end());
  IntrusivePtr<PendingMoves> pending;
  if (lane != Lane::kInline) {
    pending = MakeIntrusive<PendingMoves>(state, std::move(own), std::move(before));
    under_way_.push_back(pending);
  } else {
    for (const Work& work : own.works) work.Wait();
  }
  std::vector<DTensor> results;
  for (size_t i = 0; i < sums.size(); ++i) {
    const Leaf& leaf = leaves_[gradients[i].leaf];
    results.push_back(DTensor(MakeIntrusive<DTensorImpl>(
        host_, leaf.levels[index].after, TensorType{leaf.dtype, leaf.spec.type.shape}, sums[i], pending)));
  }
  return results;
}

// Ranks that lack different gradients must not take one for the other.
uint32_t GradientCompression::SubjectOf(const Arrived& gradients) const {
  uint64_t subject = 0;
  for (const ArrivedGradient& arrived : gradients) {
    subject = subject * 31 + StreamOf(leaves_[arrived.leaf].spec.path);
  }
  return static_cast<uint32_t>(subject) | 1;
}

void GradientCompression::EndPass(bool counts) {
  if (std::exchange(is_used_, false) || counts) ++round_;
}

// Returns the first error, when nothing is under way any more: what stands behind it on its lane runs all the same.
std::exception_ptr GradientCompression::AwaitSums() {
  std::exception_ptr first;
  const auto await = [&first](const auto& wait) {
    try {
      wait();
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  };
  for (const IntrusivePtr<PendingMoves>& pending : std::exchange(under_way_, {})) {
    await([&] { pending->Settle(); });
    if (first == nullptr) continue;
    for (const Work& work : pending->works()) await([&] { work.Wait(); });
  }
  return first;
}

std::vector<GradientCompression::StateEntry> GradientCompression::State() {
  std::vector<StateEntry> entries = Entries();
  if (is_scaled_) {
    for (size_t i = 0; i < entries.size(); ++i) {
      DTensor& tensor = entries[i].tensor;
      tensor = DTensor::FromLocal(tensor.context(), before_step_[i], tensor.layout(), tensor.shape());
    }
  } else if (const std::exception_ptr error = AwaitSums()) {
    std::rethrow_exception(error);
  }
  return entries;
}

std::vector<GradientCompression::StateEntry> GradientCompression::StateToLoad() {
  EndScaledStep(/*applied=*/false);
  AwaitSums();
  return Entries();
}

std::vector<GradientCompression::StateEntry> GradientCompression::Entries() const {
  std::vector<StateEntry> entries;
  for (const Leaf& leaf : leaves_) {
    for (const std::vector<StateEntry>& state : leaf.state) {
      entries.insert(entries.end(), state.begin(), state.end());
    }
  }
  return entries;
}

void GradientCompression::BeginScaledStep(double scale) {
  WEFT_REQUIRE(std::isfinite(scale) && scale > 0, "BeginScaledStep: expected a scale above 0, got ", scale);
  if (is_scaled_) EndScaledStep(/*applied=*/false);
  const std::vector<StateEntry> entries = State();
  const MemoryKindGuard kind(*host_->allocator(), MemoryKind::kState);
  for (size_t i = 0; i < entries.size(); ++i) {
    const Tensor kept = entries[i].tensor.ToLocal();
    if (i == before_step_.size()) {
      before_step_.push_back(Tensor::Empty(host_->allocator(), kept.dtype(), kept.shape()));
    }
    CopyTensor(kept, before_step_[i]);
  }
  scale_ = scale;
  is_scaled_ = true;
}

void GradientCompression::EndScaledStep(bool applied) {
  if (!is_scaled_) return;
  if (!applied) {
    AwaitSums();  // whatever failed, nothing of it is kept
    const std::vector<StateEntry> entries = Entries();
    for (size_t i = 0; i < entries.size(); ++i) CopyTensor(before_step_[i], entries[i].tensor.ToLocal());
  }
  scale_ = 1;
  is_scaled_ = false;
}

}  // namespace weft
