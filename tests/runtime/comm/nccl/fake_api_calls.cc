// NCCL's calls that move data. The fake keeps each until its group ends.

#include "tests/runtime/comm/nccl/fake_api.h"

namespace weft {

NcclResult FakeNccl::AllReduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                               NcclHandle comm, cudaStream_t stream) {
  return Add("ncclAllReduce", {Kind::kAllReduce, input, output, count, type, op}, comm, stream);
}
NcclResult FakeNccl::Broadcast(const void* input, void* output, int64_t count, NcclType type, int root,
                               NcclHandle comm, cudaStream_t stream) {
  return Add("ncclBroadcast", {Kind::kBroadcast, input, output, count, type, NcclOp::kSum, root}, comm,
             stream);
}
NcclResult FakeNccl::Reduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                            int root, NcclHandle comm, cudaStream_t stream) {
  return Add("ncclReduce", {Kind::kReduce, input, output, count, type, op, root}, comm, stream);
}
NcclResult FakeNccl::AllGather(const void* input, void* output, int64_t count, NcclType type, NcclHandle comm,
                               cudaStream_t stream) {
  return Add("ncclAllGather", {Kind::kAllGather, input, output, count, type}, comm, stream);
}
NcclResult FakeNccl::ReduceScatter(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                                   NcclHandle comm, cudaStream_t stream) {
  return Add("ncclReduceScatter", {Kind::kReduceScatter, input, output, count, type, op}, comm, stream);
}
NcclResult FakeNccl::Send(const void* input, int64_t count, NcclType type, int peer, NcclHandle comm,
                          cudaStream_t stream) {
  return Add("ncclSend", {Kind::kSend, input, nullptr, count, type, NcclOp::kSum, peer}, comm, stream);
}
NcclResult FakeNccl::Recv(void* output, int64_t count, NcclType type, int peer, NcclHandle comm,
                          cudaStream_t stream) {
  return Add("ncclRecv", {Kind::kRecv, nullptr, output, count, type, NcclOp::kSum, peer}, comm, stream);
}

}  // namespace weft
