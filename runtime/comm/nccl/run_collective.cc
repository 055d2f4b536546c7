#include "runtime/comm/nccl/run_collective.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/error.h"

namespace weft {
namespace {

NcclType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return NcclType::kFloat32;
    case DType::kF64:
      return NcclType::kFloat64;
    case DType::kBF16:
      return NcclType::kBfloat16;
    case DType::kF16:
      return NcclType::kFloat16;
    case DType::kI32:
      return NcclType::kInt32;
    case DType::kI64:
      return NcclType::kInt64;
    case DType::kU8:
    case DType::kBool:
      return NcclType::kUint8;
  }
  return NcclType::kUint8;
}

// Of bytes that are 0 or 1, max is "any" and min is "all".
NcclOp OpOf(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? NcclOp::kMax : NcclOp::kSum;
    case ReduceOp::kAvg:
      return is_bool ? NcclOp::kMin : NcclOp::kAvg;
    case ReduceOp::kProduct:
      return is_bool ? NcclOp::kMin : NcclOp::kProduct;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
  }
  return NcclOp::kSum;
}

char* Bytes(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

// One member's collective. What only moves, moves as bytes.
class Issue {
 public:
  Issue(const NcclMember& member, const CollectiveCall& call)
      : member_(member),
        comm_(member.comm),
        api_(member.comm.api()),
        call_(call),
        me_(member.rank),
        counts_(call.descriptor.counts) {
    const Tensor& tensor = call.input.defined() ? call.input : call.output;
    if (!tensor.defined()) return;
    item_ = ItemSize(tensor.dtype());
    type_ = TypeOf(tensor.dtype());
    op_ = OpOf(tensor.dtype(), call.descriptor.op);
  }

  void Run(const Tensor& token) {
    switch (call_.descriptor.kind) {
      case CollectiveKind::kAllReduce:
        return AllReduce(call_.input, call_.output);
      case CollectiveKind::kAllGather:
        return AllGather();
      case CollectiveKind::kReduceScatter:
        return ReduceScatter();
      case CollectiveKind::kAllToAll:
        return AllToAll();
      case CollectiveKind::kBroadcast:
        return Broadcast(Bytes(call_.input), Bytes(call_.output), counts_[0], call_.descriptor.root);
      case CollectiveKind::kReduce:
        return Reduce(Bytes(call_.input), call_.output.defined() ? Bytes(call_.output) : nullptr, counts_[0],
                      call_.descriptor.root);
      case CollectiveKind::kGather:
        return Gather();
      case CollectiveKind::kScatter:
        return Scatter();
      case CollectiveKind::kBarrier:
        item_ = 1;
        return AllReduce(token, token);
      case CollectiveKind::kSendRecv:
        break;
    }
  }

 private:
  bool AllEqual() const {
    return std::all_of(counts_.begin(), counts_.end(), [&](int64_t count) { return count == counts_[0]; });
  }
  int64_t Offset(absl::Span<const int64_t> counts, int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}) * item_;
  }

  // NCCL has nothing to do where there is nothing to move, on all members alike.
  void AllReduce(const Tensor& input, const Tensor& output) {
    if (input.num_elements() == 0) return;
    comm_.Check(api_.AllReduce(input.data(), output.data(), input.num_elements(), type_, op_, comm_.handle(),
                               member_.stream),
                "ncclAllReduce");
  }
  void Broadcast(const char* input, char* output, int64_t count, int root) {
    if (count == 0) return;
    comm_.Check(
        api_.Broadcast(input, output, count * item_, NcclType::kUint8, root, comm_.handle(), member_.stream),
        "ncclBroadcast");
  }
  void Reduce(const char* input, char* output, int64_t count, int root) {
    if (count == 0) return;
    comm_.Check(api_.Reduce(input, output, count, type_, op_, root, comm_.handle(), member_.stream),
                "ncclReduce");
  }
  void Send(const char* input, int64_t count, int peer) {
    if (count == 0) return;
    comm_.Check(api_.Send(input, count * item_, NcclType::kUint8, peer, comm_.handle(), member_.stream),
                "ncclSend");
  }
  void Recv(char* output, int64_t count, int peer) {
    if (count == 0) return;
    comm_.Check(api_.Recv(output, count * item_, NcclType::kUint8, peer, comm_.handle(), member_.stream),
                "ncclRecv");
  }

  void AllGather() {
    char* const output = Bytes(call_.output);
    if (AllEqual() && counts_[0] > 0) {
      comm_.Check(api_.AllGather(call_.input.data(), output, counts_[0] * item_, NcclType::kUint8,
                                 comm_.handle(), member_.stream),
                  "ncclAllGather");
      return;
    }
    for (int root = 0; root < member_.size; ++root) {
      char* const piece = output + Offset(counts_, root);
      Broadcast(root == me_ ? Bytes(call_.input) : piece, piece, counts_[root], root);
    }
  }

  void ReduceScatter() {
    if (AllEqual() && counts_[0] > 0) {
      comm_.Check(api_.ReduceScatter(call_.input.data(), call_.output.data(), counts_[0], type_, op_,
                                     comm_.handle(), member_.stream),
                  "ncclReduceScatter");
      return;
    }
    for (int root = 0; root < member_.size; ++root) {
      Reduce(Bytes(call_.input) + Offset(counts_, root), root == me_ ? Bytes(call_.output) : nullptr,
             counts_[root], root);
    }
  }

  void AllToAll() {
    for (int peer = 0; peer < member_.size; ++peer) {
      Send(Bytes(call_.input) + Offset(counts_, peer), counts_[peer], peer);
      Recv(Bytes(call_.output) + Offset(call_.receive_counts, peer), call_.receive_counts[peer], peer);
    }
  }

  // The root's own piece may be in place already.
  void Gather() {
    const int root = call_.descriptor.root;
    if (me_ != root) return Send(Bytes(call_.input), counts_[me_], root);
    for (int peer = 0; peer < member_.size; ++peer) {
      char* const piece = Bytes(call_.output) + Offset(counts_, peer);
      if (peer == me_ && piece == Bytes(call_.input)) continue;
      if (peer == me_) Send(Bytes(call_.input), counts_[me_], me_);
      Recv(piece, counts_[peer], peer);
    }
  }

  void Scatter() {
    const int root = call_.descriptor.root;
    if (me_ != root) return Recv(Bytes(call_.output), counts_[me_], root);
    for (int peer = 0; peer < member_.size; ++peer) {
      const char* const piece = Bytes(call_.input) + Offset(counts_, peer);
      if (peer == me_ && piece == Bytes(call_.output)) continue;
      Send(piece, counts_[peer], peer);
      if (peer == me_) Recv(Bytes(call_.output), counts_[me_], me_);
    }
  }

  const NcclMember& member_;
  const NcclComm& comm_;
  NcclApi& api_;
  const CollectiveCall& call_;
  const int me_;
  const absl::Span<const int64_t> counts_;
  int64_t item_ = 1;
  NcclType type_ = NcclType::kUint8;
  NcclOp op_ = NcclOp::kMax;
};

}  // namespace

// Of a group of calls NCCL makes as few launches as it can.
void IssueNcclCollectives(const NcclMember& member, absl::Span<const CollectiveCall> calls,
                          const Tensor& token) {
  member.comm.Group([&] {
    for (const CollectiveCall& call : calls) Issue(member, call).Run(token);
  });
}

void IssueNcclSendRecv(const NcclMember& member, absl::Span<const Message> sends,
                       absl::Span<const Message> receives) {
  NcclApi& api = member.comm.api();
  const auto is_empty = [](const Message& message) { return message.tensor.num_bytes() == 0; };
  member.comm.Group([&] {
    for (const Message& send : sends) {
      if (is_empty(send)) continue;
      member.comm.Check(api.Send(send.tensor.data(), send.tensor.num_bytes(), NcclType::kUint8, send.peer,
                                 member.comm.handle(), member.stream),
                        "ncclSend");
    }
    for (const Message& receive : receives) {
      if (is_empty(receive)) continue;
      member.comm.Check(api.Recv(receive.tensor.data(), receive.tensor.num_bytes(), NcclType::kUint8,
                                 receive.peer, member.comm.handle(), member.stream),
                        "ncclRecv");
    }
  });
}

}  // namespace weft
