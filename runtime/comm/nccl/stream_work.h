#ifndef WEFT_RUNTIME_COMM_NCCL_STREAM_WORK_H_
#define WEFT_RUNTIME_COMM_NCCL_STREAM_WORK_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/work_state.h"
#include "runtime/device/cuda/stream.h"
#include "runtime/device/cuda/stream_stalls.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// An operation that a GPU runs in a stream of its own: done when its event is. Waiting for it makes the
// streams of its tensors wait: those in which work on them ran when it was issued.
//
// Lifetime: holds the tensors until somebody has waited, or it has ended.
// Threads:  Wait and WaitFor: the rank's, whose streams they are; the rest any.
class StreamWork final : public WorkState {
 public:
  // `done` has been recorded behind the operation. `streams`: of the tensors. `stalls`: who is told of waits; null of an
  // operation within a lane's queue, whose stream waits once and whoever reads the lane's results waits for that.
  StreamWork(std::shared_ptr<CudaEvent> done, std::vector<CudaStreamRef> streams, std::vector<Tensor> tensors,
             std::shared_ptr<StreamStalls> stalls)
      : done_(std::move(done)),
        streams_(std::move(streams)),
        tensors_(std::move(tensors)),
        stalls_(std::move(stalls)) {}

  bool finished() const override;
  void Wait() override;
  bool WaitFor(std::chrono::milliseconds timeout) override;

  // It is over: done, or with `error`. The first call counts. Returns the tensors, to be let go of when
  // nothing touches them.
  std::vector<Tensor> End(std::optional<Error> error);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<CudaEvent> done_;
  std::vector<CudaStreamRef> streams_;
  std::vector<Tensor> tensors_;
  const std::shared_ptr<StreamStalls> stalls_;
  bool ended_ = false;
  std::optional<Error> error_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_STREAM_WORK_H_
