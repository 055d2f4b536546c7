// Copies of tensors on the host, for what reads them while the tensors change.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_HOST_PIECES_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_HOST_PIECES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/thread_pool.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Row-major copies by name, whose memory is used again by the next copies of the same names and types.
class HostPieces {
 public:
  HostPieces();

  // Copies of `pieces`, in their order, of any device and strides. Valid until the next call. Those of other names are let
  // go of.
  // Cost:   one pass, by the pool's threads where the pieces are contiguous on the CPU.
  // Errors: ResourceExhausted.
  std::vector<Tensor> Copy(const std::vector<std::pair<std::string, Tensor>>& pieces, ThreadPool& pool);

  int64_t num_bytes() const;

 private:
  std::shared_ptr<Allocator> allocator_;
  std::map<std::string, Tensor> copies_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_HOST_PIECES_H_
