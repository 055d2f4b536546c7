#ifndef WEFT_RUNTIME_COMM_GLOO_HEADER_H_
#define WEFT_RUNTIME_COMM_GLOO_HEADER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/comm/collective.h"

namespace weft {

// What a member tells each peer when it enters a collective: which one, with all that they must agree on, and
// the data for that peer if they are few. One message: a line, then the counts and the data if they are more
// than the line holds. Ranks run on machines of one byte order.
class GlooHeader {
 public:
  // Data up to this size travel in the header.
  static constexpr int64_t kMostData = 512;

  // For groups of `size`.
  explicit GlooHeader(int size);

  void Set(const CollectiveDescriptor& descriptor, absl::Span<const int64_t> receive_counts,
           uint64_t sequence);
  void SetData(const void* data, int64_t num_bytes);

  // The message: its first line says how long the whole is. Room for the longest, and where a transport has
  // messages of one size, that size.
  char* bytes() { return bytes_.data(); }
  int64_t line_bytes() const { return kLineBytes; }
  int64_t num_bytes() const;
  int64_t max_bytes() const { return static_cast<int64_t>(bytes_.size()); }

  // Once it has come.
  CollectiveDescriptor Descriptor() const;
  absl::Span<const int64_t> counts() const { return counts_of(0); }
  absl::Span<const int64_t> receive_counts() const { return counts_of(1); }
  uint64_t sequence() const { return line().sequence; }
  const char* data() const;  // of line().num_data bytes
  int64_t num_data() const { return line().num_data; }

  // The same call. Of all-to-alls, each sender's counts are compared with the receivers'.
  bool AgreesWith(const GlooHeader& other) const;

 private:
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t kShortData = 32;

  struct Line {
    uint64_t sequence;
    int64_t count;  // of the kinds that have one
    CollectiveKind kind;
    DType dtype;
    ReduceOp op;
    uint8_t num_lists;  // of counts: 0, 1, or 2 for all-to-all
    int32_t root;
    uint16_t num_data;
    uint16_t num_parts;  // of a list; as many as it can say
    uint32_t fingerprint;
    char short_data[kShortData];
  };
  static_assert(sizeof(Line) == kLineBytes);

  Line& line() { return *reinterpret_cast<Line*>(const_cast<char*>(bytes_.data())); }
  const Line& line() const { return *reinterpret_cast<const Line*>(bytes_.data()); }
  absl::Span<const int64_t> counts_of(int list) const;
  int64_t CountsBytes() const;

  int size_;
  std::vector<char> bytes_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_HEADER_H_
