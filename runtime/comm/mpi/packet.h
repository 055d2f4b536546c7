#ifndef WEFT_RUNTIME_COMM_MPI_PACKET_H_
#define WEFT_RUNTIME_COMM_MPI_PACKET_H_

#include <compare>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace weft {

// What ranks tell each other beside the data. From one rank to another, packets arrive in the order sent.
enum class MpiPacketKind : uint8_t {
  kJoin,    // the sender has made the group: name
  kEnter,   // enters a collective: its MpiPosting
  kOffer,   // has a message: number of bytes, and those bytes if they are few
  kTake,    // takes the oldest message offered: the tag to send its bytes under
  kEnd,     // the group has ended for the sender, which enters nothing any more: code, text
  kLeave,   // has dropped the group
  kAbort,   // all groups of the job have ended: text
  kFinish,  // the sender's rank function has returned: its last packet
  kAsk,     // is to be answered by kAnswer, by whatever thread polls
  kAnswer,
};

// Which group a packet is about: the same on all members, without any exchange.
struct MpiGroupKey {
  uint64_t ranks = 0;       // a hash of the members' world ranks
  uint64_t generation = 0;  // the ordinal of the group of these ranks, from 0

  auto operator<=>(const MpiGroupKey&) const = default;
};

// Builds a packet. Values go in this machine's bytes: the processes of a job are of one architecture.
class MpiPacketWriter {
 public:
  explicit MpiPacketWriter(MpiPacketKind kind, const MpiGroupKey& key = {}) {
    bytes_.reserve(128);
    Put(kind).Put(key);
  }

  template <class T>
  MpiPacketWriter& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }

  MpiPacketWriter& PutBytes(absl::string_view bytes) {
    Put(static_cast<int64_t>(bytes.size()));
    bytes_.append(bytes.data(), bytes.size());
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads a packet that an MpiPacketWriter built, in the same order. Views the bytes.
// Errors: Internal if they are too few.
class MpiPacketReader {
 public:
  explicit MpiPacketReader(absl::string_view bytes) : bytes_(bytes), rest_(bytes) {
    kind_ = Get<MpiPacketKind>();
    key_ = Get<MpiGroupKey>();
  }

  MpiPacketKind kind() const { return kind_; }
  const MpiGroupKey& key() const { return key_; }
  absl::string_view bytes() const { return bytes_; }  // the whole packet

  template <class T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  absl::string_view GetBytes() { return Take(Get<int64_t>()); }

 private:
  absl::string_view Take(int64_t num_bytes);

  absl::string_view bytes_;
  absl::string_view rest_;
  MpiPacketKind kind_ = MpiPacketKind::kJoin;
  MpiGroupKey key_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_PACKET_H_
