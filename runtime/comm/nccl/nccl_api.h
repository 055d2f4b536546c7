#ifndef WEFT_RUNTIME_COMM_NCCL_NCCL_API_H_
#define WEFT_RUNTIME_COMM_NCCL_NCCL_API_H_

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace weft {

// NCCL's ncclResult_t, ncclDataType_t and ncclRedOp_t, by the same numbers.
enum class NcclResult {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class NcclType {
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum class NcclOp { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

struct NcclId {
  std::array<char, 128> bytes = {};
};

// An ncclComm_t: whoever made it destroys or aborts it.
using NcclHandle = void*;

// The part of NCCL that Weft uses, a function a call, without NCCL's header: so that what NCCL may answer,
// and fail to answer, is tested without a GPU. What each does is documented by NCCL under nccl<name>.
//
// Threads: as NCCL: one at a time for a communicator; GroupStart and GroupEnd are the calling thread's.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual NcclResult GetUniqueId(NcclId* id) = 0;
  // ncclCommInitRankConfig with blocking = 0: this call and those that follow may answer kInProgress, and
  // CommGetAsyncError tells when the communicator is ready. `name` is for NCCL's own logs.
  virtual NcclResult CommInitRank(NcclHandle* comm, int size, const NcclId& id, int rank,
                                  const std::string& name) = 0;
  virtual NcclResult CommGetAsyncError(NcclHandle comm, NcclResult* error) = 0;
  virtual NcclResult CommFinalize(NcclHandle comm) = 0;
  virtual NcclResult CommDestroy(NcclHandle comm) = 0;
  virtual NcclResult CommAbort(NcclHandle comm) = 0;
  // NCCL may read and write memory that is registered where it lies. Of a library before 2.19: kInvalidUsage. `registration`
  // stays where it is until the call is through.
  virtual NcclResult CommRegister(NcclHandle comm, void* data, int64_t num_bytes, void** registration) = 0;
  virtual NcclResult CommDeregister(NcclHandle comm, void* registration) = 0;
  virtual std::string GetErrorString(NcclResult result) = 0;
  virtual std::string GetLastError(NcclHandle comm) = 0;  // `comm` may be null

  // Counts are elements, as NCCL counts them: of AllGather what a member sends, of ReduceScatter what it
  // gets.
  virtual NcclResult AllReduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                               NcclHandle comm, cudaStream_t stream) = 0;
  virtual NcclResult Broadcast(const void* input, void* output, int64_t count, NcclType type, int root,
                               NcclHandle comm, cudaStream_t stream) = 0;
  virtual NcclResult Reduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                            int root, NcclHandle comm, cudaStream_t stream) = 0;
  virtual NcclResult AllGather(const void* input, void* output, int64_t count, NcclType type, NcclHandle comm,
                               cudaStream_t stream) = 0;
  virtual NcclResult ReduceScatter(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                                   NcclHandle comm, cudaStream_t stream) = 0;
  virtual NcclResult Send(const void* input, int64_t count, NcclType type, int peer, NcclHandle comm,
                          cudaStream_t stream) = 0;
  virtual NcclResult Recv(void* output, int64_t count, NcclType type, int peer, NcclHandle comm,
                          cudaStream_t stream) = 0;
  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;
};

// Over the library.
std::shared_ptr<NcclApi> MakeNcclApi();

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_NCCL_API_H_
