#include "runtime/comm/gloo/header.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/gloo/ring.h"

namespace weft {

GlooHeader::GlooHeader(int size)
    : size_(size), bytes_(kLineBytes + WholeLines(2 * size * sizeof(int64_t)) + kMostData) {}

void GlooHeader::Set(const CollectiveDescriptor& descriptor, absl::Span<const int64_t> receive_counts,
                     uint64_t sequence) {
  const bool has_lists = !HasOneCount(descriptor.kind) && !descriptor.counts.empty();
  Line& line = this->line();
  line.sequence = sequence;
  line.count = HasOneCount(descriptor.kind) ? descriptor.counts[0] : 0;
  line.kind = descriptor.kind;
  line.dtype = descriptor.dtype;
  line.op = descriptor.op;
  line.num_lists = static_cast<uint8_t>(!has_lists ? 0 : receive_counts.empty() ? 1 : 2);
  line.root = descriptor.root;
  line.num_data = 0;
  line.num_parts = static_cast<uint16_t>(std::min<uint32_t>(descriptor.num_parts, 0xffff));
  line.fingerprint = descriptor.fingerprint;
  if (!has_lists) return;
  char* const lists = bytes_.data() + kLineBytes;
  std::memcpy(lists, descriptor.counts.data(), size_ * sizeof(int64_t));
  if (line.num_lists == 2) {
    std::memcpy(lists + size_ * sizeof(int64_t), receive_counts.data(), size_ * sizeof(int64_t));
  }
}

void GlooHeader::SetData(const void* data, int64_t num_bytes) {
  line().num_data = static_cast<uint16_t>(num_bytes);
  if (num_bytes > 0) std::memcpy(const_cast<char*>(this->data()), data, num_bytes);
}

// A peer's numbers are taken for what they may be at most: the memory is ours.
int64_t GlooHeader::CountsBytes() const {
  return WholeLines(std::min<int64_t>(line().num_lists, 2) * size_ * static_cast<int64_t>(sizeof(int64_t)));
}

const char* GlooHeader::data() const {
  return line().num_data <= kShortData ? line().short_data : bytes_.data() + kLineBytes + CountsBytes();
}

int64_t GlooHeader::num_bytes() const {
  const int64_t num_data = std::clamp<int64_t>(line().num_data, 0, kMostData);
  return kLineBytes + CountsBytes() + (num_data <= kShortData ? 0 : num_data);
}

absl::Span<const int64_t> GlooHeader::counts_of(int list) const {
  if (line().num_lists <= list) return {};
  return {reinterpret_cast<const int64_t*>(bytes_.data() + kLineBytes) + list * size_,
          static_cast<size_t>(size_)};
}

CollectiveDescriptor GlooHeader::Descriptor() const {
  CollectiveDescriptor descriptor = {
      .kind = line().kind, .dtype = line().dtype, .op = line().op, .root = line().root};
  if (HasOneCount(line().kind)) {
    descriptor.counts = {line().count};
  } else {
    descriptor.counts.assign(counts().begin(), counts().end());
  }
  descriptor.num_parts = line().num_parts;
  descriptor.fingerprint = line().fingerprint;
  return descriptor;
}

bool GlooHeader::AgreesWith(const GlooHeader& other) const {
  const Line& a = line();
  const Line& b = other.line();
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.count == b.count &&
         a.num_parts == b.num_parts && a.fingerprint == b.fingerprint &&
         (a.kind == CollectiveKind::kAllToAll || counts() == other.counts());
}

}  // namespace weft
