#include "runtime/comm/mpi/posting.h"

namespace weft {
namespace {

void WriteCounts(MpiPacketWriter& packet, const CollectiveDescriptor::Counts& counts) {
  packet.PutBytes({reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(int64_t)});
}

CollectiveDescriptor::Counts ReadCounts(MpiPacketReader& packet) {
  const absl::string_view bytes = packet.GetBytes();
  CollectiveDescriptor::Counts counts(bytes.size() / sizeof(int64_t));
  if (!bytes.empty()) std::memcpy(counts.data(), bytes.data(), counts.size() * sizeof(int64_t));
  return counts;
}

}  // namespace

void MpiPosting::Write(MpiPacketWriter& packet, int64_t num_bytes) const {
  packet.Put(descriptor.kind).Put(descriptor.dtype).Put(descriptor.op).Put(descriptor.root);
  packet.Put(descriptor.num_parts).Put(descriptor.fingerprint).Put(sequence).Put(copied);
  WriteCounts(packet, descriptor.counts);
  WriteCounts(packet, receive_counts);
  packet.PutBytes(copied ? absl::string_view(own, num_bytes) : absl::string_view());
}

MpiPosting MpiPosting::Read(MpiPacketReader& packet) {
  MpiPosting posting;
  posting.descriptor.kind = packet.Get<CollectiveKind>();
  posting.descriptor.dtype = packet.Get<DType>();
  posting.descriptor.op = packet.Get<ReduceOp>();
  posting.descriptor.root = packet.Get<int>();
  posting.descriptor.num_parts = packet.Get<uint32_t>();
  posting.descriptor.fingerprint = packet.Get<uint32_t>();
  posting.sequence = packet.Get<uint64_t>();
  posting.copied = packet.Get<bool>();
  posting.descriptor.counts = ReadCounts(packet);
  posting.receive_counts = ReadCounts(packet);
  posting.data = std::string(packet.GetBytes());
  return posting;
}

}  // namespace weft
