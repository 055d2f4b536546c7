#include "ops/cuda/cublaslt/product_cache.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/device/cuda/check.h"

namespace weft {
namespace {

constexpr uint64_t kMostWorkspaceBytes = uint64_t{32} << 20;  // what NVIDIA advises for Hopper

std::string GemmText(const CudaGemm& g) {
  const auto operand = [](const CudaGemmOperand& matrix) {
    return absl::StrCat(matrix.transposed ? "transposed, " : "", "ld ", matrix.ld);
  };
  return absl::StrCat(DTypeName(g.dtype), " [", g.m, ", ", g.k, "] (", operand(g.a), ") x [", g.k, ", ", g.n,
                      "] (", operand(g.b), ") -> ld ", g.ldc, ", batch ", g.batch,
                      g.bias != nullptr ? ", with a bias" : "",
                      g.gelu_input != nullptr ? ", with the gradient of gelu" : "",
                      g.b_sums != nullptr ? ", with sums of columns" : "");
}

cudaDataType_t DataType(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// Halves too are summed in f32: CUBLAS_COMPUTE_16F, which f16 could have, keeps 11 bits of a sum.
cublasComputeType_t ComputeType(const CudaGemm& gemm) {
  if (gemm.dtype == DType::kF64) return CUBLAS_COMPUTE_64F;
  if (gemm.dtype == DType::kF32 && gemm.allow_tf32) return CUBLAS_COMPUTE_32F_FAST_TF32;
  return CUBLAS_COMPUTE_32F;
}

// The largest power of two, at most 16, that divides the address and the way to every other matrix.
int AlignmentOf(const void* data, int64_t batch_stride, DType dtype) {
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(batch_stride * ItemSize(dtype)) | 16u;
  return static_cast<int>(bits & (~bits + 1));
}

// In the library's terms, where its left operand is our b.
cublasLtEpilogue_t EpilogueOf(const CudaGemm& gemm) {
  if (gemm.bias != nullptr) return CUBLASLT_EPILOGUE_BIAS;
  if (gemm.gelu_input != nullptr) return CUBLASLT_EPILOGUE_DGELU;
  if (gemm.b_sums != nullptr) return CUBLASLT_EPILOGUE_BGRADA;
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// A preference of the heuristics.
class Preference {
 public:
  explicit Preference(const CudaGemm& gemm) : gemm_(gemm) {
    CheckCublas(cublasLtMatmulPreferenceCreate(&handle_), "cublasLtMatmulPreferenceCreate", gemm);
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  cublasLtMatmulPreference_t handle() const { return handle_; }
  template <class T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    CheckCublas(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof(value)),
                "cublasLtMatmulPreferenceSetAttribute", gemm_);
  }

 private:
  const CudaGemm& gemm_;
  cublasLtMatmulPreference_t handle_ = nullptr;
};

template <class T>
void SetProduct(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const T& value,
                const CudaGemm& gemm) {
  CheckCublas(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)),
              "cublasLtMatmulDescSetAttribute", gemm);
}

// Of a matrix whose rows have stride 1 in memory, as cuBLASLt has them.
cublasLtMatrixLayout_t MakeLayout(const CudaGemm& gemm, int64_t rows, int64_t columns, int64_t ld,
                                  int64_t batch_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  CheckCublas(cublasLtMatrixLayoutCreate(&layout, DataType(gemm.dtype), static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(columns), ld),
              "cublasLtMatrixLayoutCreate", gemm);
  const int32_t batch = static_cast<int32_t>(gemm.batch);
  const cublasStatus_t count =
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
  const cublasStatus_t stride = cublasLtMatrixLayoutSetAttribute(
      layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof(batch_stride));
  if (count != CUBLAS_STATUS_SUCCESS || stride != CUBLAS_STATUS_SUCCESS) cublasLtMatrixLayoutDestroy(layout);
  CheckCublas(count, "cublasLtMatrixLayoutSetAttribute", gemm);
  CheckCublas(stride, "cublasLtMatrixLayoutSetAttribute", gemm);
  return layout;
}

cublasLtMatrixLayout_t MakeLayout(const CudaGemm& gemm, const CudaGemmOperand& operand, int64_t rows,
                                  int64_t columns) {
  return MakeLayout(gemm, operand.transposed ? rows : columns, operand.transposed ? columns : rows,
                    operand.ld, operand.batch_stride);
}

}  // namespace

void CheckCublas(cublasStatus_t status, const char* call, const CudaGemm& gemm) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool out_of_memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  Throw(out_of_memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
        "cuBLASLt: ", call, ": ", cublasLtGetStatusName(status), ": ", cublasLtGetStatusString(status),
        ", for ", GemmText(gemm));
}

// Addresses and factors differ from call to call and choose nothing, but for two things: how addresses are
// aligned, and whether beta is 0, when c is not read.
ProductKey ProductKey::Of(const CudaGemm& gemm) {
  ProductKey key;
  key.gemm = gemm;
  key.gemm.a.data = key.gemm.b.data = key.gemm.bias = key.gemm.gelu_input = nullptr;
  key.gemm.c = key.gemm.b_sums = nullptr;
  key.gemm.alpha = 1;
  key.gemm.beta = gemm.beta != 0 ? 1 : 0;
  key.epilogue = EpilogueOf(gemm);
  key.a_alignment = AlignmentOf(gemm.a.data, gemm.a.batch_stride, gemm.dtype);
  key.b_alignment = AlignmentOf(gemm.b.data, gemm.b.batch_stride, gemm.dtype);
  key.c_alignment = AlignmentOf(gemm.c, gemm.c_batch_stride, gemm.dtype);
  for (const void* data : {gemm.bias, gemm.gelu_input, static_cast<const void*>(gemm.b_sums)}) {
    key.c_alignment = std::min(key.c_alignment, AlignmentOf(data, /*batch_stride=*/0, gemm.dtype));
  }
  return key;
}

bool ProductKey::operator==(const ProductKey& other) const {
  const auto numbers = [](const ProductKey& key) {
    const CudaGemm& g = key.gemm;
    return std::tuple(g.dtype, g.m, g.n, g.k, g.batch, g.a.ld, g.a.transposed, g.a.batch_stride, g.b.ld,
                      g.b.transposed, g.b.batch_stride, g.ldc, g.c_batch_stride, g.beta != 0, g.allow_tf32,
                      key.epilogue, key.a_alignment, key.b_alignment, key.c_alignment);
  };
  return numbers(*this) == numbers(other);
}

PlannedProduct::PlannedProduct(cublasLtHandle_t handle, const CudaGemm& gemm) {
  try {
    Describe(gemm);
    Choose(handle, ProductKey::Of(gemm));
  } catch (...) {
    Destroy();
    throw;
  }
}

PlannedProduct::~PlannedProduct() { Destroy(); }

void PlannedProduct::Destroy() {
  for (cublasLtMatrixLayout_t layout : {left_, right_, result_}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
  if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
}

// c^T [n, m] = b^T [n, k] a^T [k, m]. A row-major matrix is, column-major, its transpose; so what is not
// transposed for us is not for cuBLASLt, and a bias of a row is its bias, of a column.
void PlannedProduct::Describe(const CudaGemm& gemm) {
  const cudaDataType_t scale_type = gemm.dtype == DType::kF64 ? CUDA_R_64F : CUDA_R_32F;
  CheckCublas(cublasLtMatmulDescCreate(&product_, ComputeType(gemm), scale_type), "cublasLtMatmulDescCreate",
              gemm);
  const auto operation = [](const CudaGemmOperand& operand) {
    return operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  SetProduct(product_, CUBLASLT_MATMUL_DESC_TRANSA, operation(gemm.b), gemm);
  SetProduct(product_, CUBLASLT_MATMUL_DESC_TRANSB, operation(gemm.a), gemm);
  SetProduct(product_, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(gemm), gemm);
  if (gemm.gelu_input != nullptr) SetProduct(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.ldc, gemm);
  PointEpilogue(gemm);
  left_ = MakeLayout(gemm, gemm.b, gemm.k, gemm.n);
  right_ = MakeLayout(gemm, gemm.a, gemm.m, gemm.k);
  result_ = MakeLayout(gemm, gemm.n, gemm.m, gemm.ldc, gemm.c_batch_stride);
}

void PlannedProduct::PointEpilogue(const CudaGemm& gemm) const {
  if (gemm.bias != nullptr) SetProduct(product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias, gemm);
  if (gemm.b_sums != nullptr) SetProduct(product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.b_sums, gemm);
  if (gemm.gelu_input != nullptr) {
    SetProduct(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gemm.gelu_input, gemm);
  }
}

void PlannedProduct::Choose(cublasLtHandle_t handle, const ProductKey& key) {
  Preference preference(key.gemm);
  preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspaceBytes);
  // Parts of a sum are added in their order, and not rounded to halves before.
  preference.Set(
      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.b_alignment));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.a_alignment));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.c_alignment));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.c_alignment));
  // The first choice of the heuristics, without a race between candidates: times differ between runs and
  // ranks, and the winners' bits with them.
  int count = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, product_, left_, right_, result_, result_, preference.handle(),
                                     /*requestedAlgoCount=*/1, &choice_, &count);
  if (status == CUBLAS_STATUS_SUCCESS) status = count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : choice_.state;
  exists_ = status == CUBLAS_STATUS_SUCCESS;
  // What these do has another way, a kernel after the product, and the caller asks before. Any other product
  // must exist.
  const bool may_lack = key.epilogue == CUBLASLT_EPILOGUE_DGELU || key.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  const bool lacks = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  if (may_lack && lacks) return;
  CheckCublas(status, "cublasLtMatmulAlgoGetHeuristic", key.gemm);
}

// Descriptors are shared by all products of a kind, so the epilogue's addresses are set anew for each. They
// go to the stream with the call: a later product may change them at once.
void PlannedProduct::Run(cublasLtHandle_t handle, const CudaGemm& gemm, void* workspace,
                         cudaStream_t stream) const {
  PointEpilogue(gemm);
  // The factors have the scale type of Describe: f32, but f64 for f64.
  const float alpha32 = static_cast<float>(gemm.alpha);
  const float beta32 = static_cast<float>(gemm.beta);
  const bool is_f64 = gemm.dtype == DType::kF64;
  const void* const alpha = is_f64 ? static_cast<const void*>(&gemm.alpha) : &alpha32;
  const void* const beta = is_f64 ? static_cast<const void*>(&gemm.beta) : &beta32;
  CheckCublas(
      cublasLtMatmul(handle, product_, alpha, gemm.b.data, left_, gemm.a.data, right_, beta, gemm.c, result_,
                     gemm.c, result_, &choice_.algo, workspace, choice_.workspaceSize, stream),
      "cublasLtMatmul", gemm);
}

ProductCache::ProductCache() {
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&generation_, cudaDevAttrComputeCapabilityMajor, device),
            "cudaDeviceGetAttribute");
  CheckCublas(cublasLtCreate(&handle_), "cublasLtCreate", CudaGemm());
}

ProductCache::~ProductCache() {
  products_.clear();
  cublasLtDestroy(handle_);
}

const PlannedProduct& ProductCache::Find(const CudaGemm& gemm) {
  const ProductKey key = ProductKey::Of(gemm);
  if (const auto found = products_.find(key); found != products_.end()) return *found->second;
  if (products_.size() >= kMostProducts) products_.clear();
  return *products_.emplace(key, std::make_unique<PlannedProduct>(handle_, gemm)).first->second;
}

bool ProductCache::Has(const CudaGemm& gemm) {
  if (gemm.dtype == DType::kF64) return false;
  if (gemm.gelu_input != nullptr) {
    // Faster on Hopper by llm.c's measurements (pull request 653), slower on consumers' GPUs before it (and
    // GELU itself after it: SGLang, 34350); elsewhere not known.
    constexpr int kHopper = 9;
    // What cuBLASLt demands of a matrix beside the result.
    constexpr int64_t kLdOf = 8;
    constexpr int kAlignmentOf = 16;
    if (generation_ != kHopper || gemm.ldc % kLdOf != 0) return false;
    if (AlignmentOf(gemm.gelu_input, /*batch_stride=*/0, gemm.dtype) < kAlignmentOf) return false;
  }
  return Find(gemm).exists();
}

}  // namespace weft
