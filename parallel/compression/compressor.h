// How gradients are summed over ranks by other means than an all-reduce: the interface of every method.

#ifndef WEFT_PARALLEL_COMPRESSION_COMPRESSOR_H_
#define WEFT_PARALLEL_COMPRESSION_COMPRESSOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "parallel/compression/communication_method.h"
#include "parallel/compression/compressor_registry.h"
#include "parallel/compression/element_box.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/worker.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One parameter's gradient in a bucket.
struct GradientPart {
  std::string path;
  // In: this rank's term. Out: the sum over the group, the same bits on every member. f32 or f64 as the whole bucket,
  // contiguous, in the host's memory, and nobody else's: it may serve as scratch in between.
  Tensor gradient;
  std::vector<Tensor> state = {};  // what Compressor::State says, in its order; zero at first
  // Of Compressor::ReduceScatter alone. In: the box of `gradient` that each member of the group owns, by group rank; they may
  // be uneven and empty, and have each element once together.
  std::vector<ElementBox> boxes = {};
  // Out: the sum over the group of this rank's box, in its order.
  Tensor owned = {};

  // Copies to `owned` what group rank `rank` owns of `gradient`.
  void TakeOwned(int rank) const;
};

// Gradients that are summed together, over one group.
//
// Lifetime: held by its tasks until the last has run.
// Threads:  the rank's thread, but for tasks, which a worker may run: these touch tensors alone, and allocate none.
class GradientBucket {
 public:
  GradientBucket(std::shared_ptr<Communicator> group, CommOptions options,
                 std::shared_ptr<Allocator> allocator, uint64_t seed, uint64_t round)
      : group_(std::move(group)),
        options_(options),
        allocator_(std::move(allocator)),
        seed_(seed),
        round_(round) {}

  std::vector<GradientPart>& parts() { return parts_; }
  const std::vector<GradientPart>& parts() const { return parts_; }
  Communicator& group() { return *group_; }
  const Communicator& group() const { return *group_; }
  // For every collective: it runs behind what was issued before, tasks included.
  const CommOptions& options() const { return options_; }
  uint64_t seed() const { return seed_; }
  // How often gradients were summed before, from 0 on; it goes on in a resumed run. What random bits go by. A step has one
  // round, or where gradients rest split one for each microbatch.
  uint64_t round() const { return round_; }

  // Scratch, uninitialised.
  Tensor NewTensor(DType dtype, int64_t num_elements) const {
    return Tensor::Empty(allocator_, dtype, {num_elements});
  }

  // Runs `task` behind what was issued before.
  void Run(absl::AnyInvocable<void()> task);
  // Takes down a collective that was issued to group().
  void Add(Work work) { works_.push_back(std::move(work)); }
  // All of it, in order: the first error is the cause of the others.
  const std::vector<Work>& works() const { return works_; }

 private:
  std::vector<GradientPart> parts_;
  const std::shared_ptr<Communicator> group_;
  const CommOptions options_;
  const std::shared_ptr<Allocator> allocator_;
  const uint64_t seed_;
  const uint64_t round_;
  std::vector<Work> works_;
};

// A tensor that a method keeps per parameter, in the dtype of its gradient.
struct CompressorState {
  std::string name;  // "residual"; what it is saved under
  // At least 0: so many numbers, the same on every rank of the group. -1: as the gradient, and each rank's own; what
  // counts is its sum over the ranks, which is kept where it is loaded by another number of them.
  int64_t shared_elements = -1;
};

// A method. Whatever differs between parameters and steps is in a bucket's parts; a method that keeps to them is right
// under any bucket size and any overlap.
class Compressor {
 public:
  virtual ~Compressor() = default;

  // What it keeps for a parameter of which a rank has a piece of this shape.
  virtual std::vector<CompressorState> State(const Shape& piece) const = 0;

  // Bucket in, `Work` out: issues whatever sums the parts, tasks (GradientBucket::Run) and collectives of the bucket's
  // group (GradientBucket::Add), and returns what ends last. Every rank of the group issues the same.
  // Threads: the rank's thread. It does not wait.
  virtual Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const = 0;

  // The same where each member of the group is to have the sum of its own box alone (GradientPart::boxes), in
  // GradientPart::owned; `gradient` is scratch. What is kept for a part is of its whole gradient here, too. By default the
  // sum is made whole, and the box taken from it.
  virtual Work ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const;
};

// The argument that every method of Weft's has: whether what a rank did not send is added to its next gradient.
MethodArgument ErrorFeedbackArgument();
// {"residual"} with error feedback, nothing without: the state of methods that keep no more.
std::vector<CompressorState> ResidualState(bool error_feedback);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_COMPRESSOR_H_
