#include "parallel/scheduler/gradient_buckets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/call/accumulate.h"
#include "dtensor/call/execute.h"
#include "dtensor/redistribution/implicit.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "mesh/shard_math.h"
#include "ops/elementwise/cast.h"
#include "parallel/scheduler/bucket_agreement.h"
#include "parallel/scheduler/bucket_cut.h"
#include "parallel/scheduler/bucket_name.h"
#include "parallel/scheduler/move_subject.h"
#include "parallel/scheduler/replica_sum.h"
#include "runtime/tensor/copy.h"

namespace weft {

GradientBuckets::GradientBuckets(MeshContext& context, std::vector<BucketLeaf> leaves,
                                 const BucketOptions& options)
    : context_(context), options_(options), leaves_(leaves.size()), order_(leaves.size()) {
  std::iota(order_.rbegin(), order_.rend(), 0);
  std::vector<CompressedLeaf> compressed;
  for (size_t i = 0; i < leaves.size(); ++i) {
    compressed.push_back({leaves[i].path, leaves[i].type, leaves[i].layout, leaves[i].communication});
    leaves_[i].subject = MoveSubject(leaves[i].path);
    leaves_[i].spec = std::move(leaves[i]);
  }
  compression_ = GradientCompression::Make(context, std::move(compressed));
}

bool GradientBuckets::HoldsBack(const BucketLeaf& leaf) const {
  return options_.holds_all || (leaf.accumulates_unreduced && !context_.state().syncs_gradients());
}

void GradientBuckets::Deliver(int index, DTensor gradient) {
  Leaf& leaf = leaves_[index];
  if (std::exchange(leaf.is_delivered, true)) {
    Throw(absl::StatusCode::kInternal, "the gradient of '", leaf.spec.path,
          "' was delivered twice in one backward pass");
  }
  if (!learnt_ && !options_.holds_all) arrivals_.push_back(index);
  if (HoldsBack(leaf.spec)) {
    Accumulate(leaf.held, std::move(gradient));
  } else {
    if (leaf.held.defined()) {
      Accumulate(leaf.held, std::move(gradient));
      gradient = std::exchange(leaf.held, DTensor());
    }
    leaf.gradient = std::move(gradient);
    if (learnt_ && leaf.bucket >= 0) --buckets_[leaf.bucket].num_awaited;
  }
  if (observer_) observer_(index);
  if (options_.find_unused || options_.holds_all) return;
  if (learnt_) {
    IssueReady();
  } else if (leaf.spec.unit >= 0) {
    IssueIfWhole(leaf.spec.unit);
  }
}

// In the pass that learns the order a unit is reduced when it is complete all the same: ranks that gather units alike
// complete them alike, and no more than two are whole.
void GradientBuckets::IssueIfWhole(int unit) {
  Bucket bucket;
  std::vector<std::string> paths;
  for (int i = 0; i < std::ssize(leaves_); ++i) {
    const Leaf& leaf = leaves_[i];
    if (leaf.spec.unit != unit || !leaf.expects) continue;
    if (!leaf.is_delivered || HoldsBack(leaf.spec)) return;
    paths.push_back(leaf.spec.path);
  }
  for (const int arrival : arrivals_) {
    if (leaves_[arrival].spec.unit == unit) bucket.leaves.push_back(arrival);
  }
  bucket.path_id = context_.state().PathId(CommonPath(paths));
  Issue(bucket);
}

// Between passes. A leaf without a place makes the next pass note the order: at a guessed place others might wait for it.
void GradientBuckets::Expect(int index, bool expects) {
  Leaf& leaf = leaves_[index];
  if (std::exchange(leaf.expects, expects) == expects) return;
  leaf.held = DTensor();
  if (leaf.bucket >= 0) buckets_[leaf.bucket].num_awaited += expects ? 1 : -1;
  if (expects && !leaf.is_placed) learnt_ = false;
}

// Buckets whose leaves are all there, unless one before them is not.
void GradientBuckets::IssueReady() {
  for (; next_ < buckets_.size(); ++next_) {
    Bucket& bucket = buckets_[next_];
    if (bucket.accumulates_unreduced && !context_.state().syncs_gradients()) continue;
    if (bucket.num_awaited > 0) return;
    Issue(bucket);
  }
}

void GradientBuckets::Reduce() {
  const NoImplicitChecksGuard planned(context_.state());
  if (!std::exchange(learnt_, true)) MakeBuckets();
  for (Leaf& leaf : leaves_) leaf.gradient = std::exchange(leaf.held, DTensor());
  if (options_.find_unused) AddMissing();
  for (Bucket& bucket : buckets_) Issue(bucket);
  BringToHost();
  // Of a stage that is frozen, too: stages have one count, and one of them saves it.
  if (compression_ != nullptr) compression_->EndPass(/*counts=*/true);
}

void GradientBuckets::EndPass() {
  if (options_.holds_all) return StartOver();
  const NoImplicitChecksGuard planned(context_.state());
  if (!learnt_) LearnOrder();
  // What only passes before this one have reached.
  for (Leaf& leaf : leaves_) {
    if (!leaf.gradient.defined() && !HoldsBack(leaf.spec))
      leaf.gradient = std::exchange(leaf.held, DTensor());
  }
  if (options_.find_unused) AddMissing();
  for (size_t i = next_; i < buckets_.size(); ++i) Issue(buckets_[i]);  // what there is, in the same order
  BringToHost();
  StartOver();
}

void GradientBuckets::AbandonPass() noexcept {
  DropHeld();  // whatever leaves hold may have been delivered in part by the pass that failed
  StartOver();
}

void GradientBuckets::StartOver() {
  for (Bucket& bucket : buckets_) {
    bucket.num_awaited = static_cast<int>(std::count_if(bucket.leaves.begin(), bucket.leaves.end(),
                                                        [&](int leaf) { return leaves_[leaf].expects; }));
  }
  for (Leaf& leaf : leaves_) leaf.is_delivered = false;
  if (compression_ != nullptr) compression_->EndPass();
  next_ = 0;
  arrivals_.clear();
  if (observer_) observer_(-1);
}

// Later passes follow the order in which this pass's leaves came. A leaf that is frozen now stays behind the leaf that it
// stood behind. Others that this pass did not reach come last.
void GradientBuckets::LearnOrder() {
  std::vector<int> order = AgreeOnOrder(context_, arrivals_, static_cast<int>(leaves_.size()));
  std::vector<int> last;
  auto place = order.begin();  // behind what stood before
  for (const int leaf : order_) {
    const auto known = std::find(order.begin(), order.end(), leaf);
    const bool is_frozen = leaves_[leaf].is_placed && !leaves_[leaf].expects;
    if (known == order.end() && !is_frozen) {
      last.push_back(leaf);
      continue;
    }
    place = (known != order.end() ? known : order.insert(place, leaf)) + 1;
  }
  order.insert(order.end(), last.begin(), last.end());
  order_ = std::move(order);
  MakeBuckets();
  learnt_ = true;
}

// By units, and by size in the order of arrival.
void GradientBuckets::MakeBuckets() {
  buckets_.clear();
  std::vector<SizedLeaf> by_size;
  for (const int leaf : order_) {
    const BucketLeaf& spec = leaves_[leaf].spec;
    if (spec.unit < 0) by_size.push_back({spec.moved_bytes, spec.accumulates_unreduced ? 1 : 0});
  }
  const std::vector<int> cut = CutBuckets(by_size, options_.bucket_bytes, options_.edge_bytes);
  std::vector<int> of_unit, of_cut;  // the bucket of each unit, and of each number in `cut`
  size_t next_by_size = 0;
  for (const int index : order_) {
    if (leaves_[index].expects) leaves_[index].is_placed = true;
    const BucketLeaf& spec = leaves_[index].spec;
    std::vector<int>& bucket_of = spec.unit >= 0 ? of_unit : of_cut;
    const int number = spec.unit >= 0 ? spec.unit : cut[next_by_size++];
    bucket_of.resize(std::max<size_t>(bucket_of.size(), number + 1), -1);
    if (bucket_of[number] < 0) {
      bucket_of[number] = static_cast<int>(buckets_.size());
      buckets_.push_back({.leaves = {}, .accumulates_unreduced = spec.accumulates_unreduced});
    }
    leaves_[index].bucket = bucket_of[number];
    buckets_[bucket_of[number]].leaves.push_back(index);
  }
  OrderBuckets();
}

// By the arrival of their last leaf, of those that ever arrive: the root's unit begins first in backward and is complete
// at its very end.
void GradientBuckets::OrderBuckets() {
  std::vector<int> place(leaves_.size());
  for (int i = 0; i < std::ssize(order_); ++i) place[order_[i]] = i;
  const auto last_of = [&](const Bucket& bucket) {
    const auto last = std::find_if(bucket.leaves.rbegin(), bucket.leaves.rend(),
                                   [&](int leaf) { return leaves_[leaf].is_placed; });
    return place[last != bucket.leaves.rend() ? *last : bucket.leaves.back()];
  };
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [&](const Bucket& a, const Bucket& b) { return last_of(a) < last_of(b); });
  for (int i = 0; i < std::ssize(buckets_); ++i) {
    std::vector<std::string> paths;
    for (const int leaf : buckets_[i].leaves) {
      leaves_[leaf].bucket = i;
      paths.push_back(leaves_[leaf].spec.path);
    }
    const bool is_unit = leaves_[buckets_[i].leaves[0]].spec.unit >= 0;
    buckets_[i].path_id = context_.state().PathId(is_unit ? CommonPath(paths) : BucketName(i, paths));
  }
}

// Zeros for what was reached on another rank and not here, which lie as it does there; all in the dtype that ranks agree on.
void GradientBuckets::AddMissing() {
  std::vector<OwnGradient> own;
  for (const Leaf& leaf : leaves_) own.push_back({leaf.gradient, leaf.spec.type.dtype});
  const std::vector<std::optional<ReachedGradient>> agreed = AgreeOnReached(context_, own);
  for (size_t i = 0; i < leaves_.size(); ++i) {
    Leaf& leaf = leaves_[i];
    if (!agreed[i]) continue;
    const auto& [layout, dtype] = *agreed[i];
    if (leaf.gradient.defined()) {
      if (leaf.gradient.dtype() != dtype) leaf.gradient = Execute(kCast, {leaf.gradient}, {.dtype = dtype});
      continue;
    }
    const ShardBox box = LocalBox(leaf.spec.type.shape, layout, context_.mesh(), context_.coordinate());
    const Tensor zeros = Tensor::Empty(context_.allocator(), dtype, box.shape);
    FillTensor(zeros, 0);
    leaf.gradient =
        DTensor::FromLocal(IntrusivePtr<MeshContext>(&context_), zeros, layout, leaf.spec.type.shape);
    if (context_.state().FirstWarning(absl::StrCat("unused ", leaf.spec.path))) {
      context_.Warn(absl::StrCat("parameter '", leaf.spec.path,
                                 "' has a gradient on other ranks and none on rank ", context_.world().rank(),
                                 ": zeros are sent for it"));
    }
  }
}

// A reduction that leaves the gradient where it lies needs no other memory, if nobody else has it.
Tensor GradientBuckets::PlaceFor(const Leaf& leaf) const {
  const DTensorImpl& impl = *leaf.gradient.impl();
  const Tensor& piece = impl.piece();
  const bool is_alone = impl.use_count() == 1 && !impl.writes && !impl.is_pending() &&
                        piece.buffer()->use_count() == 1 && piece.IsContiguous();
  if (!impl.layout.HasPartial() || !is_alone) return Tensor();
  return WithoutPartial(impl.layout) == leaf.spec.layout ? piece : Tensor();
}

void GradientBuckets::CastForReduction(Leaf& leaf) {
  const std::optional<DType>& dtype = leaf.spec.reduce_dtype;
  if (!dtype || leaf.gradient.dtype() == *dtype || leaf.gradient.layout() == leaf.spec.layout) return;
  // The model's own cast may bring terms that the dtype at rest cannot hold: their sum is cast. A narrower dtype that the plan
  // names is used all the same.
  const bool is_at_rest = *dtype == leaf.spec.type.dtype;
  if (is_at_rest && !CastsAsItLies(leaf.gradient.dtype(), *dtype, leaf.gradient.layout())) return;
  leaf.gradient = Execute(kCast, {leaf.gradient}, {.dtype = *dtype});
}

void GradientBuckets::Issue(Bucket& bucket) {
  std::vector<int> moved, compressed;
  moved.reserve(bucket.leaves.size());
  for (const int index : bucket.leaves) {
    const DTensor& gradient = leaves_[index].gradient;
    if (!gradient.defined()) continue;
    const bool has_method = compression_ != nullptr && compression_->Takes(index, gradient.layout());
    (has_method ? compressed : moved).push_back(index);
  }
  const PathGuard path(context_.state(), bucket.path_id);
  const PurposeGuard purpose(context_.state(), Purpose::kGrad);
  const MemoryKindGuard kind(*context_.allocator(), MemoryKind::kGrad);
  if (IsBounded(bucket) && outstanding_) std::exchange(outstanding_, nullptr)->Settle();
  if (!moved.empty()) IssueMoves(bucket, moved);
  if (!compressed.empty()) IssueCompressed(bucket, compressed);
}

void GradientBuckets::IssueMoves(const Bucket& bucket, const std::vector<int>& moved) {
  std::vector<EachMove> moves;
  moves.reserve(moved.size());
  for (const int index : moved) {
    Leaf& leaf = leaves_[index];
    CastForReduction(leaf);
    moves.push_back({
        .source = leaf.gradient,
        .to = BeforeReplicaSum(leaf.gradient.layout(), leaf.spec.layout),
        .into = PlaceFor(leaf),
        .subject = leaf.subject,
    });
  }
  std::vector<DTensor> results = RedistributeEach(moves, options_.lane);
  if (IsBounded(bucket)) outstanding_ = results[0].impl()->pending();
  SumReplicas(moves, moved, &results);
  BringToHost();
  for (size_t i = 0; i < moved.size(); ++i) {
    Leaf& leaf = leaves_[moved[i]];
    leaf.gradient = DTensor();
    Leave(leaf, moved[i], std::move(results[i]));
  }
}

void GradientBuckets::Leave(const Leaf& leaf, int index, DTensor result) {
  if (leaf.spec.node == nullptr) return;
  if (leaf.spec.node->on_host()) {
    to_host_.push_back({index, std::move(result)});
  } else {
    leaf.spec.node->AddGradient(std::move(result));
  }
}

// What the bucket before has brought to rest, while the next moves.
void GradientBuckets::BringToHost() {
  for (auto& [index, result] : std::exchange(to_host_, {})) {
    LeafNode* const node = leaves_[index].spec.node;
    if (node != nullptr) node->AddGradient(std::exchange(result, DTensor()));
  }
}

void GradientBuckets::IssueCompressed(const Bucket& bucket, const std::vector<int>& compressed) {
  const bool is_bounded = IsBounded(bucket);
  std::vector<ArrivedGradient> gradients;
  for (const int index : compressed)
    gradients.push_back({index, std::exchange(leaves_[index].gradient, DTensor())});
  std::vector<DTensor> sums =
      compression_->Reduce(std::move(gradients), options_.lane, options_.replica_lane);
  if (is_bounded) outstanding_ = compression_->first_sums();
  BringToHost();
  for (size_t i = 0; i < sums.size(); ++i) Leave(leaves_[compressed[i]], compressed[i], std::move(sums[i]));
}

// Of what the first way has brought here, in its place; the lane waits for it, not the rank.
void GradientBuckets::SumReplicas(const std::vector<EachMove>& moves, const std::vector<int>& moved,
                                  std::vector<DTensor>* results) {
  std::vector<EachMove> sums;
  std::vector<size_t> summed;
  for (size_t i = 0; i < moved.size(); ++i) {
    const DTensor& terms = (*results)[i];
    if (terms.layout() == leaves_[moved[i]].spec.layout) continue;
    // A slice is the gradient's own memory, which others may have.
    const bool is_own = terms.impl()->piece().buffer() != moves[i].source.impl()->piece().buffer() &&
                        terms.impl()->piece().IsContiguous();
    sums.push_back({
        .source = terms,
        .to = leaves_[moved[i]].spec.layout,
        .into = is_own ? terms.impl()->piece() : Tensor(),
        .subject = leaves_[moved[i]].subject,
    });
    summed.push_back(i);
  }
  const std::vector<DTensor> rest = RedistributeEach(sums, options_.replica_lane);
  for (size_t i = 0; i < summed.size(); ++i) (*results)[summed[i]] = rest[i];
}

}  // namespace weft
