#include "ops/cpu/product/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <signal.h>

#include <Eigen/Core>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <type_traits>

#include "runtime/base/error.h"

namespace weft {
namespace {

// Below this many multiply-adds a library call costs more than the product.
constexpr int64_t kTinyWork = 64;

template <class T>
void GemmTiny(const GemmSize& size, T alpha, const GemmMatrix<T>& a, const GemmMatrix<T>& b, bool accumulate,
              T* c, int64_t ldc) {
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n; ++j) {
      T sum = 0;
      for (int64_t p = 0; p < size.k; ++p) sum += *a.At(i, p) * *b.At(p, j);
      T& to = c[i * ldc + j];
      to = accumulate ? to + alpha * sum : alpha * sum;
    }
  }
}

// While it lives, this thread calls no handler of a signal; those that come wait until then.
//
// oneDNN before 3.11.2 lets the stack pointer of its sgemm point into the heap while a buffer of packed operands has no place
// on the stack (issue 4845 of oneDNN): a handler that is called on that stack, and not on an alternate one, writes over
// what lies there. So a program that saves on SIGTERM would save, and crash, or worse. What a kernel does itself
// (SIGSEGV and the like) is not held back.
class NoSignalHandlers {
 public:
  NoSignalHandlers() {
    sigset_t held;
    sigfillset(&held);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&held, signal);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~NoSignalHandlers() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignalHandlers(const NoSignalHandlers&) = delete;
  NoSignalHandlers& operator=(const NoSignalHandlers&) = delete;

 private:
  sigset_t before_;
};

// Up to so many terms of a sum the buffer is on the stack (found by trying: 80 are, 95 are not). The two system
// calls cost little beside a longer sum.
constexpr int64_t kMostTermsOnStack = 64;

// oneDNN's sgemm and not its matmul primitive, which made 62 to 111 GFLOP/s on one core where sgemm made 98
// to 113; nor weights in oneDNN's own packed format, which a weight that is read twice in a step does not
// repay (docs/performance.md).
void GemmF32(const GemmSize& size, float alpha, const GemmMatrix<float>& a, const GemmMatrix<float>& b,
             bool accumulate, float* c, int64_t ldc) {
  std::optional<NoSignalHandlers> no_handlers;
  if (size.k > kMostTermsOnStack) no_handlers.emplace();
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size.m, size.n, size.k, alpha, a.data,
                 a.ld, b.data, b.ld, accumulate ? 1.0f : 0.0f, c, ldc);
  WEFT_CHECK(status == dnnl_success, "dnnl_sgemm: status ", static_cast<int>(status), " for m ", size.m,
             ", n ", size.n, ", k ", size.k, ", lda ", a.ld, ", ldb ", b.ld, ", ldc ", ldc);
}

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColumnMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

// Calls `use` with the matrix as an Eigen expression.
template <class Use>
void WithMap(const GemmMatrix<double>& matrix, int64_t rows, int64_t cols, const Use& use) {
  const Eigen::OuterStride<> stride(matrix.ld);
  if (matrix.transposed) {
    use(Eigen::Map<const ColumnMajor, 0, Eigen::OuterStride<>>(matrix.data, rows, cols, stride));
  } else {
    use(Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>>(matrix.data, rows, cols, stride));
  }
}

void GemmF64(const GemmSize& size, double alpha, const GemmMatrix<double>& a, const GemmMatrix<double>& b,
             bool accumulate, double* c, int64_t ldc) {
  // Always a sum into c: without noalias() Eigen would make the product in a temporary first, since it must
  // assume that c is an operand.
  Eigen::Map<RowMajor, 0, Eigen::OuterStride<>> to(c, size.m, size.n, Eigen::OuterStride<>(ldc));
  if (!accumulate) to.setZero();
  WithMap(a, size.m, size.k, [&](const auto& left) {
    WithMap(b, size.k, size.n, [&](const auto& right) { to.noalias() += alpha * left * right; });
  });
}

// A transposed matrix is the same memory with its strides exchanged, so a transpose costs no copy.
dnnl::memory::desc Describe(const GemmMatrix<BFloat16>& matrix, int64_t rows, int64_t cols) {
  const dnnl::memory::dims strides =
      matrix.transposed ? dnnl::memory::dims{1, matrix.ld} : dnnl::memory::dims{matrix.ld, 1};
  return {{rows, cols}, dnnl::memory::data_type::bf16, strides};
}

dnnl::matmul::primitive_desc DescribeProduct(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                             const dnnl::memory::desc& b, const dnnl::memory::desc& c) {
  return {dnnl::matmul::desc(a, b, c), dnnl::primitive_attr(), engine, /*allow_empty=*/true};
}

// oneDNN's interface takes pointers to what it only reads without const.
void* Untyped(const BFloat16* data) { return const_cast<BFloat16*>(data); }

}  // namespace

template <class T>
void Gemm(const GemmSize& size, T alpha, const GemmMatrix<T>& a, const GemmMatrix<T>& b, bool accumulate,
          T* c, int64_t ldc) {
  if (size.m == 0 || size.n == 0) return;
  if (size.k == 0 && accumulate) return;
  if (size.m * size.n * size.k <= kTinyWork) {
    GemmTiny(size, alpha, a, b, accumulate, c, ldc);
  } else if constexpr (std::is_same_v<T, float>) {
    GemmF32(size, alpha, a, b, accumulate, c, ldc);
  } else {
    GemmF64(size, alpha, a, b, accumulate, c, ldc);
  }
}

template void Gemm(const GemmSize&, float, const GemmMatrix<float>&, const GemmMatrix<float>&, bool, float*,
                   int64_t);
template void Gemm(const GemmSize&, double, const GemmMatrix<double>&, const GemmMatrix<double>&, bool,
                   double*, int64_t);

// By a matmul primitive, since oneDNN's public interface has no gemm of bf16. It does not accumulate: c would
// be rounded to bf16 before each sum is added, so the caller never cuts k.
void GemmBF16(const GemmSize& size, const GemmMatrix<BFloat16>& a, const GemmMatrix<BFloat16>& b, BFloat16* c,
              int64_t ldc) {
  if (size.m == 0 || size.n == 0) return;
  if (size.k == 0) {
    for (int64_t i = 0; i < size.m; ++i) std::fill_n(c + i * ldc, size.n, BFloat16(0.0f));
    return;
  }
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::memory::desc a_desc = Describe(a, size.m, size.k);
  const dnnl::memory::desc b_desc = Describe(b, size.k, size.n);
  const dnnl::memory::desc c_desc = Describe({.data = c, .ld = ldc}, size.m, size.n);
  // oneDNN keeps the compiled primitive in its own cache.
  const dnnl::matmul::primitive_desc desc = DescribeProduct(engine, a_desc, b_desc, c_desc);
  WEFT_CHECK(static_cast<bool>(desc), "oneDNN has no bf16 product here; ask HasFastBF16 first");
  dnnl::stream stream(engine);
  dnnl::matmul(desc).execute(stream, {{DNNL_ARG_SRC, {a_desc, engine, Untyped(a.data)}},
                                      {DNNL_ARG_WEIGHTS, {b_desc, engine, Untyped(b.data)}},
                                      {DNNL_ARG_DST, {c_desc, engine, c}}});
  stream.wait();
}

// Everywhere else a bf16 product is an f32 one of converted operands, which rounds its result once as well.
bool HasFastBF16() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

bool HasTileBF16() { return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx; }

GemmTiling::GemmTiling(const GemmSize& size) : size_(size) {
  // Measured against one whole product (256 x 768 x 3072, one thread): tiles of 256 rows and 192 columns or
  // more lose up to 5%, 128 rows 10%, 96 columns of a transposed operand 30%. So columns are cut first, none
  // below 192, and only while there are few tiles and each is worth a task of some 0.2 ms.
  constexpr int64_t kMaxTileM = 256;
  constexpr int64_t kMaxTileN = 768;
  constexpr int64_t kMinTileN = 192;
  constexpr int64_t kMinTileM = 128;
  constexpr int64_t kEnoughTiles = 4;
  constexpr int64_t kMinTileWork = int64_t{1} << 24;
  tile_m_ = std::clamp<int64_t>(size.m, 1, kMaxTileM);
  tile_n_ = std::clamp<int64_t>(size.n, 1, kMaxTileN);
  const auto pieces = [](int64_t extent, int64_t piece) { return (extent + piece - 1) / piece; };
  // Half, rounded up to what the vector kernels take in one go.
  const auto half = [](int64_t extent) { return ((extent + 1) / 2 + 15) / 16 * 16; };
  while (pieces(size.m, tile_m_) * pieces(size.n, tile_n_) < kEnoughTiles &&
         tile_work() >= 2 * kMinTileWork) {
    if (tile_n_ >= 2 * kMinTileN) {
      tile_n_ = half(tile_n_);
    } else if (tile_m_ >= 2 * kMinTileM) {
      tile_m_ = half(tile_m_);
    } else {
      break;
    }
  }
  rows_ = pieces(size.m, tile_m_);
  cols_ = pieces(size.n, tile_n_);
  // An odd one would be for one thread of two to do while the other waits.
  if (rows_ * cols_ > 1 && rows_ % 2 == 1 && cols_ % 2 == 1 && tile_work() >= 2 * kMinTileWork) ++cols_;
  // Of one size, as nearly as vectors allow.
  const auto piece = [](int64_t extent, int64_t count) {
    return ((extent + count - 1) / count + 15) / 16 * 16;
  };
  tile_m_ = std::min(piece(size.m, std::max<int64_t>(1, rows_)), std::max<int64_t>(1, size.m));
  tile_n_ = std::min(piece(size.n, std::max<int64_t>(1, cols_)), std::max<int64_t>(1, size.n));
  rows_ = pieces(size.m, tile_m_);
  cols_ = pieces(size.n, tile_n_);
}

}  // namespace weft
