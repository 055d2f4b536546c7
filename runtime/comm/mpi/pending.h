#ifndef WEFT_RUNTIME_COMM_MPI_PENDING_H_
#define WEFT_RUNTIME_COMM_MPI_PENDING_H_

#include <mpi.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "runtime/comm/mpi/leftovers.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// MPI requests that are waited for together, and the arrays of numbers that they read.
struct MpiBatch {
  std::vector<MPI_Request> requests;  // collectives and sends: MPI can not cancel them
  std::vector<MPI_Request> receives;
  std::list<std::vector<int>> numbers;

  MPI_Request* NewRequest() { return &requests.emplace_back(MPI_REQUEST_NULL); }
  MPI_Request* NewReceive() { return &receives.emplace_back(MPI_REQUEST_NULL); }
  // `values`, which fit, where the batch keeps them.
  const int* Ints(absl::Span<const int64_t> values);

  // True once MPI has done all of them, which are forgotten then. Moves them on.
  bool Done();
};

// What one operation has under way in MPI, with references to all the memory it touches: so that a failed one
// can be left to itself.
//
// Lifetime: its end cancels receives that nothing has reached. If then anything is still under way, all of it
//           goes to the leftovers: the tensors are not freed, and an output may still be written.
class MpiPending {
 public:
  static constexpr int kNumBatches = 4;

  // `what` names the operation; it outlives this.
  MpiPending(MpiLeftovers& leftovers, absl::FunctionRef<std::string()> what)
      : leftovers_(leftovers), what_(what), held_(std::make_unique<Held>()) {}
  ~MpiPending();
  MpiPending(const MpiPending&) = delete;
  MpiPending& operator=(const MpiPending&) = delete;

  void Hold(const Tensor& tensor) { held_->tensors.push_back(tensor); }
  void Hold(std::shared_ptr<char[]> staging) { held_->staging = std::move(staging); }

  MpiBatch& batch(int index) { return held_->batches[index]; }
  // All batches. Moves them on.
  bool Done() { return held_->Done(); }
  // Nothing has been started or all has ended well.
  bool idle() const;

 private:
  struct Held final : MpiLeftover {
    bool Done() override;
    std::string What() const override;

    std::string what;
    std::vector<Tensor> tensors;
    std::shared_ptr<char[]> staging;
    MpiBatch batches[kNumBatches];
  };

  MpiLeftovers& leftovers_;
  const absl::FunctionRef<std::string()> what_;
  std::unique_ptr<Held> held_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_PENDING_H_
