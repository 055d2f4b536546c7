#include "runtime/comm/packed_list.h"

#include <algorithm>
#include <cstring>

namespace weft {
namespace {

bool IsSmall(const CollectiveCall& call, int64_t small_bytes) {
  return std::max(call.input.num_bytes(), call.output.num_bytes()) <= small_bytes;
}

}  // namespace

PackedList::PackedList(const std::shared_ptr<Allocator>& allocator, absl::Span<const CollectiveCall> calls,
                       int64_t small_bytes) {
  for (const CollectiveCall& call : calls) {
    if (IsSmall(call, small_bytes)) small_.push_back(&call);
  }
  if (small_.size() < 2) small_.clear();
  calls_.reserve(calls.size() - small_.size() + 1);
  if (!small_.empty()) {
    int64_t num_input = 0, num_output = 0;
    for (const CollectiveCall* call : small_) {
      descriptor_.Append(call->descriptor);
      num_input += call->input.num_elements();
      num_output += call->output.num_elements();
    }
    input_ = Tensor::Empty(allocator, descriptor_.dtype, {num_input});
    output_ = Tensor::Empty(allocator, descriptor_.dtype, {num_output});
    const bool by_rank = descriptor_.kind == CollectiveKind::kReduceScatter;
    ForEachPiece(by_rank, /*of_output=*/false,
                 [](char* own, char* packed, int64_t num_bytes) { std::memcpy(packed, own, num_bytes); });
    const CollectiveCall& first = *small_[0];
    calls_.push_back(
        {descriptor_, input_, output_, {}, first.sequence, first.timeout, first.all_entered_ns, first.turn});
  }
  for (const CollectiveCall& call : calls) {
    if (small_.empty() || !IsSmall(call, small_bytes)) calls_.push_back(call);
  }
}

// Calls `visit` with what lies together in a call's buffer and in the packed one: of buffers that hold a piece
// per rank, the pieces one by one.
template <class Visit>
void PackedList::ForEachPiece(bool by_rank, bool of_output, const Visit& visit) const {
  const int64_t item = ItemSize(descriptor_.dtype);
  char* packed = static_cast<char*>((of_output ? output_ : input_).data());
  std::vector<int64_t> begins(small_.size(), 0);
  const size_t num_ranks = by_rank ? descriptor_.counts.size() : 1;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    for (size_t i = 0; i < small_.size(); ++i) {
      const Tensor& own = of_output ? small_[i]->output : small_[i]->input;
      const int64_t num_bytes = by_rank ? small_[i]->descriptor.counts[rank] * item : own.num_bytes();
      if (num_bytes > 0) visit(static_cast<char*>(own.data()) + begins[i], packed, num_bytes);
      begins[i] += num_bytes;
      packed += num_bytes;
    }
  }
}

void PackedList::Unpack() const {
  if (small_.empty()) return;
  const bool by_rank = descriptor_.kind == CollectiveKind::kAllGather;
  ForEachPiece(by_rank, /*of_output=*/true,
               [](char* own, char* packed, int64_t num_bytes) { std::memcpy(own, packed, num_bytes); });
}

}  // namespace weft
