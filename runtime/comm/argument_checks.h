#ifndef WEFT_RUNTIME_COMM_ARGUMENT_CHECKS_H_
#define WEFT_RUNTIME_COMM_ARGUMENT_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/comm/collective.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Checks of what a member of a group gives to one of the group's methods. Views the group's name. `what` names
// the argument in the error: "input".
//
// Cost:   text is made on failure only: a small collective costs less than a string.
// Errors: InvalidArgument naming group and method, what was given and what was expected.
class ArgumentChecks {
 public:
  ArgumentChecks(const std::string& group, CollectiveKind kind, int group_size)
      : group_(group), kind_(kind), group_size_(group_size) {}

  // "group 'dp': all_reduce: ".
  std::string Where() const;

  // Defined and contiguous; of `num_elements`.
  void RequireTensor(absl::string_view what, const Tensor& tensor) const;
  void RequireTensor(absl::string_view what, const Tensor& tensor, int64_t num_elements) const;

  void RequireSameDType(const Tensor& input, const Tensor& output) const;

  // One per member, none below 0.
  void RequireCounts(absl::string_view what, absl::Span<const int64_t> counts) const;

  // A group rank.
  void RequirePeer(absl::string_view what, int peer) const;

  // `small` and `large` either do not overlap, or `small` begins `offset` elements into `large`; offset -1:
  // they may not overlap at all.
  void RequireInPlace(const Tensor& small, const Tensor& large, int64_t offset) const;

 private:
  const std::string& group_;
  const CollectiveKind kind_;
  const int group_size_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_ARGUMENT_CHECKS_H_
