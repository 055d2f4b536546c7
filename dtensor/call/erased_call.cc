#include "dtensor/call/erased_call.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

std::string ErasedCall::ToString() const {
  const auto append = [](std::string* out, DTensorRef operand) { out->append(operand.Share().ToString()); };
  return absl::StrCat(op.name(), "(", absl::StrJoin(operands, ", ", append), ")");
}

}  // namespace weft
