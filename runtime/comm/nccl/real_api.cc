#include <nccl.h>

#include <cstring>

#include "runtime/comm/nccl/nccl_api.h"

namespace weft {
namespace {

template <class A, class B>
constexpr bool SameNumber(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}

static_assert(SameNumber(NcclResult::kSuccess, ncclSuccess) &&
              SameNumber(NcclResult::kUnhandledCudaError, ncclUnhandledCudaError) &&
              SameNumber(NcclResult::kSystemError, ncclSystemError) &&
              SameNumber(NcclResult::kInternalError, ncclInternalError) &&
              SameNumber(NcclResult::kInvalidArgument, ncclInvalidArgument) &&
              SameNumber(NcclResult::kInvalidUsage, ncclInvalidUsage) &&
              SameNumber(NcclResult::kRemoteError, ncclRemoteError) &&
              SameNumber(NcclResult::kInProgress, ncclInProgress));
static_assert(SameNumber(NcclType::kUint8, ncclUint8) && SameNumber(NcclType::kInt32, ncclInt32) &&
              SameNumber(NcclType::kInt64, ncclInt64) && SameNumber(NcclType::kFloat16, ncclFloat16) &&
              SameNumber(NcclType::kFloat32, ncclFloat32) && SameNumber(NcclType::kFloat64, ncclFloat64) &&
              SameNumber(NcclType::kBfloat16, ncclBfloat16));
static_assert(SameNumber(NcclOp::kSum, ncclSum) && SameNumber(NcclOp::kProduct, ncclProd) &&
              SameNumber(NcclOp::kMax, ncclMax) && SameNumber(NcclOp::kMin, ncclMin) &&
              SameNumber(NcclOp::kAvg, ncclAvg));
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

NcclResult Result(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclDataType_t Type(NcclType type) { return static_cast<ncclDataType_t>(type); }
ncclRedOp_t Op(NcclOp op) { return static_cast<ncclRedOp_t>(op); }
ncclComm_t Comm(NcclHandle comm) { return static_cast<ncclComm_t>(comm); }
size_t Count(int64_t count) { return static_cast<size_t>(count); }

class RealNcclApi final : public NcclApi {
 public:
  NcclResult GetUniqueId(NcclId* id) override {
    ncclUniqueId unique;
    const ncclResult_t result = ncclGetUniqueId(&unique);
    std::memcpy(id->bytes.data(), &unique, sizeof(unique));
    return Result(result);
  }

  NcclResult CommInitRank(NcclHandle* comm, int size, const NcclId& id, int rank,
                          const std::string& name) override {
    ncclUniqueId unique;
    std::memcpy(&unique, id.bytes.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = name.c_str();
    ncclComm_t made = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&made, size, unique, rank, &config);
    *comm = made;
    return Result(result);
  }

  NcclResult CommGetAsyncError(NcclHandle comm, NcclResult* error) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(Comm(comm), &state);
    *error = Result(state);
    return Result(result);
  }

  NcclResult CommFinalize(NcclHandle comm) override { return Result(ncclCommFinalize(Comm(comm))); }
  NcclResult CommDestroy(NcclHandle comm) override { return Result(ncclCommDestroy(Comm(comm))); }
  NcclResult CommAbort(NcclHandle comm) override { return Result(ncclCommAbort(Comm(comm))); }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
  NcclResult CommRegister(NcclHandle comm, void* data, int64_t num_bytes, void** registration) override {
    return Result(ncclCommRegister(Comm(comm), data, Count(num_bytes), registration));
  }
  NcclResult CommDeregister(NcclHandle comm, void* registration) override {
    return Result(ncclCommDeregister(Comm(comm), registration));
  }
#else
  NcclResult CommRegister(NcclHandle, void*, int64_t, void**) override { return NcclResult::kInvalidUsage; }
  NcclResult CommDeregister(NcclHandle, void*) override { return NcclResult::kInvalidUsage; }
#endif
  std::string GetErrorString(NcclResult result) override {
    return ncclGetErrorString(static_cast<ncclResult_t>(result));
  }
  std::string GetLastError(NcclHandle comm) override {
    const char* const text = ncclGetLastError(Comm(comm));
    return text == nullptr ? "" : text;
  }

  NcclResult AllReduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                       NcclHandle comm, cudaStream_t stream) override {
    return Result(ncclAllReduce(input, output, Count(count), Type(type), Op(op), Comm(comm), stream));
  }
  NcclResult Broadcast(const void* input, void* output, int64_t count, NcclType type, int root,
                       NcclHandle comm, cudaStream_t stream) override {
    return Result(ncclBroadcast(input, output, Count(count), Type(type), root, Comm(comm), stream));
  }
  NcclResult Reduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op, int root,
                    NcclHandle comm, cudaStream_t stream) override {
    return Result(ncclReduce(input, output, Count(count), Type(type), Op(op), root, Comm(comm), stream));
  }
  NcclResult AllGather(const void* input, void* output, int64_t count, NcclType type, NcclHandle comm,
                       cudaStream_t stream) override {
    return Result(ncclAllGather(input, output, Count(count), Type(type), Comm(comm), stream));
  }
  NcclResult ReduceScatter(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                           NcclHandle comm, cudaStream_t stream) override {
    return Result(ncclReduceScatter(input, output, Count(count), Type(type), Op(op), Comm(comm), stream));
  }
  NcclResult Send(const void* input, int64_t count, NcclType type, int peer, NcclHandle comm,
                  cudaStream_t stream) override {
    return Result(ncclSend(input, Count(count), Type(type), peer, Comm(comm), stream));
  }
  NcclResult Recv(void* output, int64_t count, NcclType type, int peer, NcclHandle comm,
                  cudaStream_t stream) override {
    return Result(ncclRecv(output, Count(count), Type(type), peer, Comm(comm), stream));
  }
  NcclResult GroupStart() override { return Result(ncclGroupStart()); }
  NcclResult GroupEnd() override { return Result(ncclGroupEnd()); }
};

}  // namespace

std::shared_ptr<NcclApi> MakeNcclApi() { return std::make_shared<RealNcclApi>(); }

}  // namespace weft
