#ifndef WEFT_RUNTIME_COMM_MPI_POSTING_H_
#define WEFT_RUNTIME_COMM_MPI_POSTING_H_

#include <cstdint>
#include <string>

#include "runtime/comm/collective.h"
#include "runtime/comm/mpi/packet.h"

namespace weft {

// Inputs up to this size travel inside the posting, so that a small collective is one exchange of packets.
inline constexpr int64_t kMpiCopiedBytes = 512;

// What a member tells its peers when it enters a collective: what they have to agree on, and its input if
// that is small.
struct MpiPosting {
  CollectiveDescriptor descriptor;
  CollectiveDescriptor::Counts receive_counts;  // of an all-to-all
  uint64_t sequence = 0;
  bool copied = true;         // all that peers read of the input is here
  std::string data;           // that, of a peer
  const char* own = nullptr;  // that, of this member: its tensor; null if peers read nothing of it

  const char* input() const { return own != nullptr ? own : data.data(); }

  // `num_bytes` lie at `own`. They are put into the packet if `copied`.
  void Write(MpiPacketWriter& packet, int64_t num_bytes) const;
  static MpiPosting Read(MpiPacketReader& packet);
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_POSTING_H_
