#include "parallel/compression/gradient_compression.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "dtensor/call/execute.h"
#include "dtensor/redistribute_each.h"
#include "mesh/shard_math.h"
#include "ops/elementwise/cast.h"
#include "parallel/compression/methods/values.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

int64_t NumRanks(const DeviceMesh& mesh, const AxisList& axes) {
  int64_t count = 1;
  for (const int axis : axes) count *= mesh.axis_size(axis);
  return count;
}

// The axes that split a tensor.
AxisList SplitAxes(const Layout& layout) {
  AxisList axes;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.IsShard(axis)) axes.push_back(axis);
  }
  return axes;
}

// The layout at rest, but for the sums that the method makes.
Layout BeforeSum(const CompressedLeaf& leaf, const Layout& arriving) {
  Layout before = leaf.layout;
  for (const int axis : leaf.communication.axes) {
    before = before.WithPartial(axis, arriving.partial_op(axis));
  }
  return before;
}

std::string StateName(const CompressedLeaf& leaf, const CompressorState& state) {
  return absl::StrCat("communication.", leaf.path, ".", state.name);
}

// What a rank's term counts for in a sum.
double WeightOf(const CompressedLeaf& leaf, const Layout& arriving, const DeviceMesh& mesh) {
  double weight = 1;
  for (const int axis : leaf.communication.axes) {
    if (arriving.partial_op(axis) == ReduceOp::kAvg) weight /= static_cast<double>(mesh.axis_size(axis));
  }
  return weight;
}

}  // namespace

std::unique_ptr<GradientCompression> GradientCompression::Make(MeshContext& context,
                                                               std::vector<CompressedLeaf> leaves) {
  auto compression =
      std::unique_ptr<GradientCompression>(new GradientCompression(context, std::move(leaves)));
  return compression->compressors_.empty() ? nullptr : std::move(compression);
}

GradientCompression::GradientCompression(MeshContext& context, std::vector<CompressedLeaf> leaves)
    : context_(context), leaves_(leaves.size()) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    Leaf& leaf = leaves_[i];
    leaf.spec = std::move(leaves[i]);
    const CommunicationMethod& method = leaf.spec.communication.method;
    if (!leaf.spec.communication.compresses() || NumRanks(context.mesh(), leaf.spec.communication.axes) == 1)
      continue;
    WEFT_REQUIRE(context.allocator()->device().type == DeviceType::kCpu, "Communication(", method.ToString(),
                 ") on '", leaf.spec.path, "': gradients are compressed on CPUs; this rank's lie on ",
                 DeviceTypeName(context.allocator()->device().type));
    std::unique_ptr<const Compressor>& compressor = compressors_[method.ToString()];
    if (compressor == nullptr) compressor = FindCompressor(method.name).make(method);
    leaf.compressor = compressor.get();
    leaf.dtype = leaf.spec.type.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    AddState(leaf);
  }
}

// Every rank keeps the same tensors under the same names: those of the largest piece.
void GradientCompression::AddState(Leaf& leaf) {
  const DeviceMesh& mesh = context_.mesh();
  const Shape& shape = leaf.spec.type.shape;
  const Shape largest = LargestPiece(shape, leaf.spec.layout, mesh);
  for (const CompressorState& state : leaf.compressor->State(largest)) {
    int64_t num_elements = state.shared_elements;
    if (num_elements >= 0) {  // uneven pieces may need more than the largest
      for (const int rank : mesh.ranks()) {
        const ShardBox box = LocalBox(shape, leaf.spec.layout, mesh, mesh.CoordinateOf(rank));
        for (const CompressorState& of_rank : leaf.compressor->State(box.shape)) {
          if (of_rank.name == state.name) num_elements = std::max(num_elements, of_rank.shared_elements);
        }
      }
    }
    leaf.state.push_back({.name = StateName(leaf.spec, state),
                          .tensor = MakeState(leaf, state, num_elements),
                          .is_shared = num_elements >= 0});
  }
}

DTensor GradientCompression::MakeState(const Leaf& leaf, const CompressorState& state,
                                       int64_t num_elements) const {
  const DeviceMesh& mesh = context_.mesh();
  const Layout& layout = leaf.spec.layout;
  const bool is_shared = state.shared_elements >= 0;
  const AxisList rows = is_shared ? SplitAxes(layout) : leaf.spec.communication.axes;
  Shape shape = {NumRanks(mesh, rows)};
  std::vector<AxisPlacement> placements;
  for (const int axis : rows) placements.push_back({mesh.axis_name(axis), Shard(0)});
  if (is_shared) {
    shape.push_back(num_elements);
  } else {
    for (int dim = 0; dim < layout.ndim(); ++dim) {
      shape.push_back(leaf.spec.type.shape[dim]);
      for (const int axis : layout.ShardAxes(dim))
        placements.push_back({mesh.axis_name(axis), Shard(dim + 1)});
    }
  }
  const Layout lies(mesh, shape.ndim(), placements);
  const MemoryKindGuard kind(*context_.allocator(), MemoryKind::kState);
  const Tensor piece = Tensor::Empty(context_.allocator(), leaf.dtype,
                                     LocalBox(shape, lies, mesh, context_.coordinate()).shape);
  FillTensor(piece, 0);
  return DTensor::FromLocal(IntrusivePtr<MeshContext>(&context_), piece, lies, shape);
}

bool GradientCompression::Takes(int leaf, const Layout& arriving) const {
  const Leaf& own = leaves_[leaf];
  if (own.compressor == nullptr) return false;
  return std::all_of(own.spec.communication.axes.begin(), own.spec.communication.axes.end(), [&](int axis) {
    return arriving.IsPartial(axis) &&
           (arriving.partial_op(axis) == ReduceOp::kSum || arriving.partial_op(axis) == ReduceOp::kAvg);
  });
}

// In the dtype of the sums, and with everything done that other axes lack.
DTensor GradientCompression::Prepare(const Leaf& leaf, DTensor gradient, Lane lane) const {
  if (gradient.dtype() != leaf.dtype) gradient = Execute(kCast, {gradient}, {.dtype = leaf.dtype});
  const Layout before = BeforeSum(leaf.spec, gradient.layout());
  if (gradient.layout() == before) return gradient;
  return RedistributeEach({EachMove{.source = gradient, .to = before}}, lane)[0];
}

// In the gradient's memory, if nobody else has it; otherwise in a copy, which is made behind what is still under way.
GradientPart GradientCompression::MakePart(const Leaf& leaf, const Layout& arriving, DTensor prepared,
                                           GradientBucket& bucket) const {
  const DTensorImpl& impl = *prepared.impl();
  const bool waits = bucket.options().worker == nullptr;
  GradientPart part = {.path = leaf.spec.path, .gradient = waits ? impl.Local() : impl.piece()};
  const bool is_alone = impl.use_count() == 1 && !impl.writes && !impl.is_pending() &&
                        part.gradient.buffer()->use_count() == 2 && part.gradient.IsContiguous();
  if (!is_alone) {
    const Tensor from = part.gradient;
    part.gradient = Tensor::Empty(context_.allocator(), leaf.dtype, from.shape());
    bucket.Run([from, to = part.gradient] { CopyTensor(from, to); });
  }
  const double weight = WeightOf(leaf.spec, arriving, context_.mesh());
  if (weight != 1) {
    bucket.Run([gradient = part.gradient, weight] {
      OnValues(gradient, [&](auto values) {
        for (auto& value : values) value *= weight;
      });
    });
  }
  for (const CompressorState& kept : leaf.compressor->State(part.gradient.shape())) {
    const std::string name = StateName(leaf.spec, kept);
    const auto found = std::find_if(leaf.state.begin(), leaf.state.end(),
                                    [&](const StateEntry& entry) { return entry.name == name; });
    WEFT_CHECK(found != leaf.state.end(), name);
    part.state.push_back(found->tensor.ToLocal());
  }
  return part;
}

std::vector<DTensor> GradientCompression::Reduce(std::vector<ArrivedGradient> gradients, Lane lane) {
  if (!std::exchange(is_used_, true)) under_way_.clear();
  using Key = std::tuple<const Compressor*, AxisList, DType>;
  std::vector<std::pair<Key, std::vector<size_t>>> buckets;  // in the order of their first gradients
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Leaf& leaf = leaves_[gradients[i].leaf];
    const Key key = {leaf.compressor, leaf.spec.communication.axes, leaf.dtype};
    auto found =
        std::find_if(buckets.begin(), buckets.end(), [&](const auto& other) { return other.first == key; });
    if (found == buckets.end()) found = buckets.insert(found, {key, {}});
    found->second.push_back(i);
  }
  std::vector<DTensor> sums(gradients.size());
  for (const auto& [key, members] : buckets) {
    std::vector<ArrivedGradient> some;
    for (const size_t i : members) some.push_back(std::move(gradients[i]));
    std::vector<DTensor> of_bucket = ReduceBucket(std::move(some), lane);
    for (size_t i = 0; i < members.size(); ++i) sums[members[i]] = std::move(of_bucket[i]);
  }
  return sums;
}

std::vector<DTensor> GradientCompression::ReduceBucket(std::vector<ArrivedGradient> gradients, Lane lane) {
  RankState& state = context_.state();
  const Leaf& first = leaves_[gradients[0].leaf];
  CommOptions options = {.tag = state.tag()};
  if (lane != Lane::kInline) {
    options.async = true;
    options.worker = &state.LaneWorker(lane);
  }
  const auto bucket =
      std::make_shared<GradientBucket>(context_.SharedGroup(first.spec.communication.axes, lane), options,
                                       context_.allocator(), state.seed(), round_);
  LaneWorks own = {.worker = options.worker};
  PendingMoves::Lanes before;  // of other lanes
  for (ArrivedGradient& arrived : gradients) {
    const Leaf& leaf = leaves_[arrived.leaf];
    const Layout arriving = arrived.gradient.layout();
    DTensor prepared = Prepare(leaf, std::move(arrived.gradient), lane);
    if (prepared.impl()->is_pending()) {
      const PendingMoves& moves = *prepared.impl()->pending();
      own.works.insert(own.works.end(), moves.works().begin(), moves.works().end());
      before.insert(before.end(), moves.lanes().begin(), moves.lanes().end() - 1);
    }
    bucket->parts().push_back(MakePart(leaf, arriving, std::move(prepared), *bucket));
  }
  const Work last = first.compressor->Reduce(bucket);
  own.works.insert(own.works.end(), bucket->works().begin(), bucket->works().end());
  own.works.push_back(last);
  IntrusivePtr<PendingMoves> pending;
  if (lane != Lane::kInline) {
    pending = MakeIntrusive<PendingMoves>(state, std::move(own), std::move(before));
    under_way_.push_back(pending);
  } else {
    for (const Work& work : own.works) work.Wait();
  }
  std::vector<DTensor> sums;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Leaf& leaf = leaves_[gradients[i].leaf];
    sums.push_back(DTensor(MakeIntrusive<DTensorImpl>(IntrusivePtr<MeshContext>(&context_), leaf.spec.layout,
                                                      TensorType{leaf.dtype, leaf.spec.type.shape},
                                                      bucket->parts()[i].gradient, pending)));
  }
  return sums;
}

void GradientCompression::EndPass() {
  if (std::exchange(is_used_, false)) ++round_;
}

std::vector<GradientCompression::StateEntry> GradientCompression::State() {
  for (const IntrusivePtr<PendingMoves>& pending : under_way_) pending->Settle();
  under_way_.clear();
  std::vector<StateEntry> entries;
  for (const Leaf& leaf : leaves_) entries.insert(entries.end(), leaf.state.begin(), leaf.state.end());
  return entries;
}

}  // namespace weft
