#include "runtime/comm/argument_checks.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

std::string ArgumentChecks::Where() const {
  return absl::StrCat("group '", group_, "': ", CollectiveName(kind_), ": ");
}

void ArgumentChecks::RequireTensor(absl::string_view what, const Tensor& tensor) const {
  WEFT_REQUIRE(tensor.defined(), Where(), what, " is undefined");
  WEFT_REQUIRE(tensor.IsContiguous(), Where(), what, " ", tensor.TypeString(),
               " is not contiguous; clone it, or pass a contiguous slice");
}

void ArgumentChecks::RequireTensor(absl::string_view what, const Tensor& tensor, int64_t num_elements) const {
  RequireTensor(what, tensor);
  WEFT_REQUIRE(tensor.num_elements() == num_elements, Where(), what, " ", tensor.TypeString(), " has ",
               tensor.num_elements(), " elements, expected ", num_elements);
}

void ArgumentChecks::RequireSameDType(const Tensor& input, const Tensor& output) const {
  WEFT_REQUIRE(input.dtype() == output.dtype(), Where(), "input is ", input.TypeString(), ", output ",
               output.TypeString(), ": the dtypes differ");
}

void ArgumentChecks::RequireCounts(absl::string_view what, absl::Span<const int64_t> counts) const {
  WEFT_REQUIRE(static_cast<int>(counts.size()) == group_size_, Where(), what, " has ", counts.size(),
               " numbers, expected one for each of the ", group_size_, " members");
  for (int64_t count : counts) WEFT_REQUIRE(count >= 0, Where(), what, " holds ", count, ", below 0");
}

void ArgumentChecks::RequirePeer(absl::string_view what, int peer) const {
  WEFT_REQUIRE(peer >= 0 && peer < group_size_, Where(), what, " ", peer,
               " is not a group rank: the group has ", group_size_, " members");
}

void ArgumentChecks::RequireInPlace(const Tensor& small, const Tensor& large, int64_t offset) const {
  if (!(small.buffer() == large.buffer()) || small.num_bytes() == 0 || large.num_bytes() == 0) return;
  if (small.device().type == DeviceType::kMeta) return;
  const char* const a = static_cast<const char*>(small.data());
  const char* const b = static_cast<const char*>(large.data());
  if (a == b && offset == 0) return;
  if (a + small.num_bytes() <= b || b + large.num_bytes() <= a) return;
  WEFT_REQUIRE(offset >= 0, Where(), "input and output overlap");
  WEFT_REQUIRE(a == b + offset * ItemSize(large.dtype()), Where(),
               "input and output overlap, but not in the one place where this collective works in place");
}

}  // namespace weft
