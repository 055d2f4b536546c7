#include "ops/attention.h"
#include "ops/cpu/attention_heads.h"
#include "ops/cpu/attention_scores.h"
#include "ops/cpu/parallel_copy.h"
#include "ops/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// The operands and results of one call, in the dtype that it computes in, all as HeadMatrices need them.
struct GradTensors {
  Tensor q, k, v, y, lse, dy;
  Tensor dq, dk, dv;
};

// Eight sums side by side, which the compiler can keep in vectors.
template <class T>
T Dot(const T* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = 8;
  T sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Backward: one task a key head, since dk and dv sum over the queries and query heads that read it.
template <class T>
class Backward {
 public:
  Backward(const AttentionExtents& extents, const AttentionAttributes& attributes, const GradTensors& tensors)
      : n_(extents),
        mask_{attributes.causal, extents.t - extents.s},
        scale_(static_cast<T>(AttentionScale(attributes, extents.e))),
        q_(tensors.q, extents),
        k_(tensors.k, extents),
        v_(tensors.v, extents),
        y_(tensors.y, extents),
        dy_(tensors.dy, extents),
        dq_(tensors.dq, extents),
        dk_(tensors.dk, extents),
        dv_(tensors.dv, extents),
        lse_(tensors.lse.data<T>()) {}

  // dq, dk and dv must be 0.
  void Run(KernelContext& context) const {
    const int64_t rows = std::min(kQueryBlock, n_.s);
    const int64_t elements = rows * (2 * std::min(kKeyBlock, n_.t) + 1);
    RunWithWorkspace<T>(context, n_.b * n_.h, elements, [&](int64_t task, T* workspace) {
      HeadIndex head = {task / n_.h, task % n_.h, 0};
      for (; head.g < n_.g; ++head.g) {
        for (int64_t query = 0; query < n_.s; query += kQueryBlock) {
          RunBlock(head, query, std::min(kQueryBlock, n_.s - query), workspace);
        }
      }
    });
  }

 private:
  void RunBlock(const HeadIndex& head, int64_t query, int64_t rows, T* workspace) const {
    T* const delta = workspace;
    T* const scores = delta + rows;
    Delta(head, query, rows, delta);
    const T* const lse = lse_ + ((head.b * n_.h + head.h) * n_.g + head.g) * n_.s + query;
    const HeadIndex key_head = {head.b, head.h, 0};
    const int64_t keys = mask_.KeysBefore(query + rows, n_.t);
    for (int64_t key = 0; key < keys; key += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, keys - key);
      T* const d_scores = scores + rows * cols;
      // scores [rows, cols] = scale q [rows, e] k^T [e, cols]; d_scores = dy [rows, e] v^T [e, cols]
      Gemm<T>({rows, cols, n_.e}, scale_, q_.Matrix(head, query), k_.Transposed(key_head, key),
              /*accumulate=*/false, scores, cols);
      Gemm<T>({rows, cols, n_.e}, T(1), dy_.Matrix(head, query), v_.Transposed(key_head, key),
              /*accumulate=*/false, d_scores, cols);
      ScoreGradients({rows, cols, mask_.Visible(query, key, cols)}, lse, delta, scale_, scores, d_scores);
      // dv [cols, e] += p^T [cols, rows] dy [rows, e]; dk [cols, e] += ds^T q; dq [rows, e] += ds k
      const GemmMatrix<T> p_transposed = {scores, cols, /*transposed=*/true};
      const GemmMatrix<T> ds_transposed = {d_scores, cols, /*transposed=*/true};
      Gemm<T>({cols, n_.e, rows}, T(1), p_transposed, dy_.Matrix(head, query), /*accumulate=*/true,
              dv_.Head(key_head, key), dv_.row_stride());
      Gemm<T>({cols, n_.e, rows}, T(1), ds_transposed, q_.Matrix(head, query), /*accumulate=*/true,
              dk_.Head(key_head, key), dk_.row_stride());
      Gemm<T>({rows, n_.e, cols}, T(1), {d_scores, cols}, k_.Matrix(key_head, key), /*accumulate=*/true,
              dq_.Head(head, query), dq_.row_stride());
    }
  }

  // sum over e of dy y: what the softmax's own sum passes back.
  void Delta(const HeadIndex& head, int64_t query, int64_t rows, T* delta) const {
    for (int64_t i = 0; i < rows; ++i) {
      const T* const y = y_.Head(head, query + i);
      const T* const dy = dy_.Head(head, query + i);
      delta[i] = Dot(y, dy, n_.e);
    }
  }

  AttentionExtents n_;
  AttentionMask mask_;
  T scale_;
  HeadMatrices<T> q_;
  HeadMatrices<T> k_;
  HeadMatrices<T> v_;
  HeadMatrices<T> y_;
  HeadMatrices<T> dy_;
  HeadMatrices<T> dq_;
  HeadMatrices<T> dk_;
  HeadMatrices<T> dv_;
  const T* lse_;
};

void AttentionGrad(const KernelCall<AttentionAttributes, NoScalars>& call) {
  KernelContext& context = call.context;
  const DType dtype = AttentionDType(call.inputs[0].dtype());
  const bool direct = call.inputs[0].dtype() == dtype;
  const auto result = [&](int i) {
    const Tensor& out = call.outputs[i];
    const Tensor to = direct ? out : Tensor::Empty(context.allocator, dtype, out.shape());
    FillTensor(to, 0);
    return to;
  };
  const auto operand = [&](int i) { return AsHeads(context, call.inputs[i], dtype); };
  const Tensor& lse = call.inputs[4];
  const GradTensors tensors = {operand(0),
                               operand(1),
                               operand(2),
                               operand(3),
                               lse.IsContiguous() ? lse : ParallelClone(context.pool, lse, context.allocator),
                               operand(5),
                               result(0),
                               result(1),
                               result(2)};
  const AttentionExtents extents = AttentionExtents::Of(tensors.q, tensors.k);
  if (tensors.q.num_elements() > 0 && tensors.k.num_elements() > 0) {
    if (dtype == DType::kF64) {
      Backward<double>(extents, call.attributes(), tensors).Run(context);
    } else {
      Backward<float>(extents, call.attributes(), tensors).Run(context);
    }
  }
  if (direct) return;
  ParallelCopy(context.pool, tensors.dq, call.outputs[0]);
  ParallelCopy(context.pool, tensors.dk, call.outputs[1]);
  ParallelCopy(context.pool, tensors.dv, call.outputs[2]);
}

const RegisterKernel kRegister(kAttentionGrad, DeviceType::kCpu, AttentionGrad);

}  // namespace
}  // namespace weft
