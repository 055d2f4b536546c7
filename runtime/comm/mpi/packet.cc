#include "runtime/comm/mpi/packet.h"

#include "runtime/base/error.h"

namespace weft {

absl::string_view MpiPacketReader::Take(int64_t num_bytes) {
  WEFT_CHECK(num_bytes >= 0 && num_bytes <= static_cast<int64_t>(rest_.size()), "a packet lacks ", num_bytes,
             " bytes, ", rest_.size(), " are left");
  const absl::string_view taken = rest_.substr(0, num_bytes);
  rest_.remove_prefix(num_bytes);
  return taken;
}

}  // namespace weft
