// Named tensors that lie in files.

#ifndef WEFT_DTENSOR_CHECKPOINT_TENSOR_SOURCE_H_
#define WEFT_DTENSOR_CHECKPOINT_TENSOR_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Whole tensors by name, of which any box can be read, however they lie in files: one file (SafetensorsReader), or a step
// of a checkpoint folder (StepReader).
// Threads: one at a time.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // What errors call it.
  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> Names() const = 0;
  // The type of the tensor of that name; null if there is none.
  virtual const TensorType* Find(absl::string_view name) const = 0;

  // The elements of `box` of the tensor `name`: only they are read.
  // Errors: NotFound naming the file and the tensor; InvalidArgument if the box is of another shape;
  //         DataLoss naming the file that is broken.
  Tensor Read(absl::string_view name, const ShardBox& box, const std::shared_ptr<Allocator>& allocator);
  // The same into `piece`, which is of the tensor's dtype and the box's shape, and row-major on the CPU.
  // Errors: as Read; some elements of `piece` may be written by then.
  void ReadInto(absl::string_view name, const ShardBox& box, const Tensor& piece);

 private:
  // Reads the elements into `out`, row-major. The tensor is there, and the box is of its shape.
  virtual void DoRead(const std::string& name, const ShardBox& box, char* out) = 0;

  const TensorType& Check(absl::string_view name, const ShardBox& box) const;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_TENSOR_SOURCE_H_
