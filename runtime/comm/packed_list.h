#ifndef WEFT_RUNTIME_COMM_PACKED_LIST_H_
#define WEFT_RUNTIME_COMM_PACKED_LIST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/comm/collective_call.h"
#include "runtime/device/allocator.h"

namespace weft {

// A list of all-reduces, all-gathers or reduce-scatters of one dtype whose small parts have become one, for
// backends that pay for each message: their inputs lie side by side in a buffer, the pieces of one rank
// together in the order of the list, so that each element meets the same elements as alone.
//
// Lifetime: views the calls, which are of CPU tensors; owns the buffers of the packed one.
class PackedList {
 public:
  // Packs those of at most `small_bytes`, if they are two or more. Members that agree on the list agree on what
  // is packed.
  // Cost: a copy of the small inputs.
  PackedList(const std::shared_ptr<Allocator>& allocator, absl::Span<const CollectiveCall> calls,
             int64_t small_bytes);
  PackedList(const PackedList&) = delete;
  PackedList& operator=(const PackedList&) = delete;

  // What there is to run: the packed one first, if there is one.
  absl::Span<const CollectiveCall> calls() const { return calls_; }

  // Once they have run: brings the results of the packed one to their places.
  void Unpack() const;

 private:
  template <class Visit>
  void ForEachPiece(bool by_rank, bool of_output, const Visit& visit) const;

  std::vector<const CollectiveCall*> small_;
  CollectiveDescriptor descriptor_;
  Tensor input_;
  Tensor output_;
  std::vector<CollectiveCall> calls_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_PACKED_LIST_H_
