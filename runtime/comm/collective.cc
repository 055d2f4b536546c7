#include "runtime/comm/collective.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {
bool HasReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

bool HasOneCount(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kReduce;
}

absl::string_view CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kSendRecv:
      return "send_recv";
    case CollectiveKind::kBarrier:
      break;
  }
  return "barrier";
}

std::string CollectiveDescriptor::ToString() const {
  if (kind == CollectiveKind::kBarrier || kind == CollectiveKind::kSendRecv) {
    return absl::StrCat(CollectiveName(kind), "()");
  }
  std::string text = absl::StrCat(CollectiveName(kind), "(", DTypeName(dtype));
  if (HasReduction(kind)) absl::StrAppend(&text, ", ", ReduceOpName(op));
  if (HasRoot(kind)) absl::StrAppend(&text, ", root ", root);
  if (HasOneCount(kind) && counts.size() == 1) {
    absl::StrAppend(&text, ", count ", counts[0]);
  } else {
    absl::StrAppend(&text, ", counts [", absl::StrJoin(counts, ", "), "]");
  }
  if (num_parts > 0) absl::StrAppend(&text, " in ", num_parts, " parts");
  if (num_parts > 0 || fingerprint != 0)
    absl::StrAppend(&text, " #", absl::Hex(fingerprint, absl::kZeroPad8));
  return text + ")";
}

void CollectiveDescriptor::Append(const CollectiveDescriptor& part) {
  if (num_parts == 0) {
    *this = part;
    fingerprint = 0;
  } else {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += part.counts[i];
  }
  ++num_parts;
  for (const int64_t count : part.counts) {
    for (const int shift : {0, 32}) Mix(static_cast<uint32_t>(count >> shift));
  }
}

// FNV-1a, by words.
void CollectiveDescriptor::Mix(uint32_t word) {
  if (fingerprint == 0) fingerprint = 2166136261u;
  fingerprint = (fingerprint ^ word) * 16777619u;
  fingerprint ^= fingerprint >> 15;
}

int64_t LedgerBytes(const CollectiveDescriptor& descriptor, int group_size) {
  const int64_t others = group_size - 1;
  const int64_t whole = std::accumulate(descriptor.counts.begin(), descriptor.counts.end(), int64_t{0}) *
                        ItemSize(descriptor.dtype);
  switch (descriptor.kind) {
    case CollectiveKind::kAllReduce:
      return 2 * others * whole;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return others * whole;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return whole - descriptor.counts[descriptor.root] * ItemSize(descriptor.dtype);
    case CollectiveKind::kBarrier:
      return 0;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendRecv:
      break;
  }
  Throw(absl::StatusCode::kInternal, "the bytes of ", CollectiveName(descriptor.kind),
        " do not follow from one member's descriptor");
}

}  // namespace weft
