#ifndef WEFT_PARALLEL_SCHEDULER_GRADIENT_BUCKETS_H_
#define WEFT_PARALLEL_SCHEDULER_GRADIENT_BUCKETS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/context/lane.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/redistribute_each.h"
#include "dtensor/redistribution/pending_moves.h"
#include "dtensor/tape/gradient_sink.h"
#include "dtensor/tape/leaf_node.h"
#include "mesh/layout.h"
#include "parallel/compression/gradient_compression.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// A leaf whose gradient the buckets bring to rest.
struct BucketLeaf {
  LeafNode* node = nullptr;
  std::string path;
  TensorType type;  // the gradient's
  Layout layout;    // where it rests
  std::optional<DType> reduce_dtype =
      std::nullopt;  // in which it is summed over ranks; as it comes if not given
  // Under NoSync the gradient stays on this rank, unreduced, until the first pass without.
  bool accumulates_unreduced = true;
  // Leaves of one unit, at least 0, are one bucket of their own; -1: buckets are made by size.
  int unit = -1;
  int64_t moved_bytes = 0;  // its size: of what a rank has of it to be summed, the same on every rank
  ParameterCommunication communication = {};  // how it is summed; as a redistribution if not given
};

struct BucketOptions {
  int64_t bucket_bytes = 25 << 20;
  // The first bucket and the last hold no more, so that the first is on its way early and the last ends soon; those
  // before the last grow smaller towards it (CutBuckets).
  int64_t edge_bytes = 1 << 20;
  Lane lane = Lane::kGrad;
  Lane replica_lane = Lane::kReplica;  // of the second way to rest: BeforeReplicaSum
  // Passes may reach other leaves on one rank than on another: each pass ends with an agreement on what was
  // reached anywhere, and what is absent here goes in as zeros. One that reaches no leaf at all takes no part.
  bool find_unused = false;
  // Every pass adds its gradients up on this rank, unreduced, whatever the leaves say; Reduce brings the sums to rest.
  bool holds_all = false;
};

// The gradients of many leaves, brought to rest a bucket at a time while backward goes on: the whole of DDP's
// and ZeRO's communication of gradients, and of FSDP's, whose units are its buckets. A bucket is one
// RedistributeEach, issued when its last leaf is there and the buckets before it are on their way, so that
// every rank issues the same in the same order. Where ranks keep pieces and replicas sum them, it is two, on two
// lanes: replicas sum one unit's pieces while the next unit's terms are scattered. Gradients whose leaves have a method
// of communication go that way, those of a bucket together (parallel/compression).
//
// The first pass notes in what order leaves come, and reduces units alone; at its end the ranks agree on mesh rank 0's
// order, and the buckets follow it from then on. So does the first pass with a leaf that expected no gradients until then,
// such as a parameter that was frozen: ranks have to expect alike.
//
// A pass that does not reach all leaves sends what there is, at its end: also what passes under NoSync have added up for
// leaves that it does not reach itself.
//
// A bucket of a unit stands in the ledger under the unit's module, another under its number and the modules that it goes
// from and to (bucket_name.h).
//
// Cost:    per pass that syncs: of each gradient the redistribution to its layout. After a pass that notes the order: one
//          all-reduce of 8 bytes per leaf; with find_unused, one of 24 bytes per leaf, and 16 more, in every pass.
// Memory:  gradients of a bucket stay until it has moved. Where less than these rests here (units; on a GPU ZeRO, too), the next
//          such bucket waits for that: whole gradients are those of one bucket on its way, and those that are not issued
//          yet. On CPUs ZeRO's do not wait: whole are those that the lane has not come to yet, as under DDP. A reduction to
//          the layout that a gradient has works in its place. What is to rest on the host
//          (LeafNode::on_host) is brought there when the next bucket is on its way, so that two buckets of it are on the
//          device. With find_unused nothing moves before the pass's end: all gradients stay until then, whole ones of all
//          units.
// Source:  Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020.
// Threads: the rank's thread.
class GradientBuckets final : public GradientSink {
 public:
  GradientBuckets(MeshContext& context, std::vector<BucketLeaf> leaves, const BucketOptions& options);

  // Errors: Internal, naming the leaf, if it was delivered before in this pass: what came first may be on its way.
  void Deliver(int leaf, DTensor gradient) override;
  void Forget(int index) noexcept override {
    Leaf& leaf = leaves_[index];
    leaf.spec.node = nullptr;
    leaf.held = DTensor();
    const bool is_awaited = std::exchange(leaf.expects, false) && !leaf.is_delivered;
    if (is_awaited && leaf.bucket >= 0) --buckets_[leaf.bucket].num_awaited;
  }
  void Drop(int leaf) noexcept override { leaves_[leaf].held = DTensor(); }
  void Expect(int leaf, bool expects) override;
  void EndPass() override;
  void AbandonPass() noexcept override;
  uint64_t sequence() const override { return sequence_; }

  // With holds_all: brings to rest what passes have added up since the last call, of the last leaf first. The
  // first call makes the buckets.
  void Reduce();

  // Drops what passes have added up and has not been brought to rest, also by a Reduce that has failed.
  void DropHeld() noexcept {
    for (Leaf& leaf : leaves_) leaf.gradient = leaf.held = DTensor();
    to_host_.clear();
  }

  bool expects(int leaf) const { return leaves_[leaf].expects; }

  // Null: no leaf has a method of communication that has anything to do.
  GradientCompression* compression() { return compression_.get(); }

  // Called with a leaf when backward has delivered it, and with no leaf (-1) at the end of a pass.
  void set_observer(std::function<void(int leaf)> observer) { observer_ = std::move(observer); }

 private:
  struct Leaf {
    BucketLeaf spec;
    uint32_t subject = 0;  // as EachMove's
    DTensor held;          // of passes under NoSync
    DTensor gradient;      // delivered in this pass, not yet issued
    int bucket = -1;
    bool expects = true;        // gradients of passes
    bool is_placed = false;     // a pass that expected one of it has noted the order
    bool is_delivered = false;  // in this pass
  };
  struct Bucket {
    std::vector<int> leaves;  // in the order of arrival
    int num_awaited = 0;      // in this pass, of those that expect one
    int path_id = 0;          // of its name (bucket_name.h)
    bool accumulates_unreduced = true;
  };

  bool HoldsBack(const BucketLeaf& leaf) const;
  void StartOver();
  void BringToHost();
  void LearnOrder();
  void MakeBuckets();
  void OrderBuckets();
  void AddMissing();
  void IssueReady();
  void IssueIfWhole(int unit);
  void CastForReduction(Leaf& leaf);
  void Issue(Bucket& bucket);
  void IssueMoves(const Bucket& bucket, const std::vector<int>& moved);
  void IssueCompressed(const Bucket& bucket, const std::vector<int>& compressed);
  // Whether it waits until the one before it, of which this holds too, has moved: since less rests here of any of its
  // gradients than was made. Of ZeRO only on a GPU, whose host issues all of backward ahead of the lane, which keeps whole
  // gradients until the rank's stream waits for it. On CPUs backward itself would stand still.
  bool IsBounded(const Bucket& bucket) const {
    const bool is_unit = leaves_[bucket.leaves[0]].spec.unit >= 0;
    const bool is_ahead = context_.allocator()->device().type != DeviceType::kCpu;
    const auto shrinks = [this](int index) {
      const BucketLeaf& spec = leaves_[index].spec;
      const DTensor& gradient = leaves_[index].gradient;
      if (!gradient.defined()) return false;
      const AxisList axes = gradient.layout().PartialAxes();
      return std::any_of(axes.begin(), axes.end(), [&](int axis) { return spec.layout.IsShard(axis); });
    };
    return (is_unit || is_ahead) && !options_.holds_all &&
           std::any_of(bucket.leaves.begin(), bucket.leaves.end(), shrinks);
  }
  void Leave(const Leaf& leaf, int index, DTensor result);
  void SumReplicas(const std::vector<EachMove>& moves, const std::vector<int>& moved,
                   std::vector<DTensor>* results);
  Tensor PlaceFor(const Leaf& leaf) const;

  MeshContext& context_;
  const BucketOptions options_;
  const uint64_t sequence_ = context_.state().NextSequence();
  std::vector<Leaf> leaves_;
  std::vector<int> order_;     // of all leaves: the last first, until passes have noted another
  std::vector<int> arrivals_;  // in a pass that notes the order
  std::vector<Bucket> buckets_;
  bool learnt_ = false;
  size_t next_ = 0;  // bucket to issue
  std::vector<std::pair<int, DTensor>>
      to_host_;                             // leaves and what they get of the last bucket that was issued
  IntrusivePtr<PendingMoves> outstanding_;  // of a bounded one: the next such waits for it
  std::unique_ptr<GradientCompression> compression_;
  std::function<void(int)> observer_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_GRADIENT_BUCKETS_H_
