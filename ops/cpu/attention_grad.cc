#include <limits>

#include "ops/attention.h"
#include "ops/cpu/attention_heads.h"
#include "ops/cpu/attention_scores.h"
#include "ops/cpu/parallel_copy.h"
#include "ops/cpu/score_changes.h"
#include "ops/kernel.h"
#include "ops/masked_attention.h"
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

// One block of scores and what it passes back: what the gradients of q, k and v and that of a mask begin
// with.
template <class T>
class BlockGradients {
 public:
  // `changes` may be null: no mask and no dropout.
  BlockGradients(const AttentionExtents& extents, const AttentionAttributes& attributes, T scale,
                 const GradTensors& tensors, const ScoreChanges* changes)
      : n(extents),
        mask{attributes.causal, extents.t - extents.s},
        score_scale(static_cast<T>(AttentionScale(attributes, extents.e))),
        result_scale(scale),
        q(tensors.q, extents),
        k(tensors.k, extents),
        v(tensors.v, extents),
        y(tensors.y, extents),
        dy(tensors.dy, extents),
        lse(tensors.lse.data<T>()),
        changes(changes) {}

  // Elements of workspace for a block: [rows] of delta, and [rows, cols] of scores, of their gradients and,
  // with dropout, of factors.
  int64_t WorkspaceElements() const {
    const int64_t rows = std::min(kQueryBlock, n.s);
    return rows * (num_matrices() * std::min(kKeyBlock, n.t) + 1);
  }
  int64_t num_matrices() const { return changes != nullptr && changes->drops() ? 3 : 2; }

  // sum over e of dy y: what the softmax's own sum passes back.
  void Delta(const HeadIndex& head, int64_t query, int64_t rows, T* delta) const {
    for (int64_t i = 0; i < rows; ++i) delta[i] = Dot(y.Head(head, query + i), dy.Head(head, query + i), n.e);
  }

  // scores become the probabilities that multiplied v, and d_scores = scores + rows * cols the gradients of
  // the scores before the mask, times result_scale.
  void Run(const HeadIndex& head, int64_t query, int64_t rows, int64_t key, int64_t cols, const T* delta,
           T* scores) const {
    T* const d_scores = scores + rows * cols;
    const HeadIndex key_head = {head.b, head.h, 0};
    // scores [rows, cols] = scale q [rows, e] k^T [e, cols]; d_scores = dy [rows, e] v^T [e, cols]
    Gemm<T>({rows, cols, n.e}, score_scale, q.Matrix(head, query), k.Transposed(key_head, key),
            /*accumulate=*/false, scores, cols);
    Gemm<T>({rows, cols, n.e}, T(1), dy.Matrix(head, query), v.Transposed(key_head, key),
            /*accumulate=*/false, d_scores, cols);
    const ScoreBlock block = {rows, cols, mask.Visible(query, key, cols)};
    const T* const lse_rows = lse + ((head.b * n.h + head.h) * n.g + head.g) * n.s + query;
    if (changes == nullptr) {
      ScoreGradients(block, lse_rows, delta, result_scale, scores, d_scores);
    } else {
      RunChanged(block, head, query, key, lse_rows, delta, scores, d_scores);
    }
  }

  const AttentionExtents n;
  const AttentionMask mask;
  const T score_scale;
  const T result_scale;
  const HeadMatrices<T> q, k, v, y, dy;
  const T* const lse;
  const ScoreChanges* const changes;

 private:
  void RunChanged(const ScoreBlock& block, const HeadIndex& head, int64_t query, int64_t key,
                  const T* lse_rows, const T* delta, T* scores, T* d_scores) const {
    T* const factors = d_scores + block.rows * block.cols;
    for (int64_t i = 0; i < block.rows; ++i) {
      T* const row = scores + i * block.cols;
      T* const d_row = d_scores + i * block.cols;
      const int64_t visible = block.VisibleIn(i);
      if (lse_rows[i] == -std::numeric_limits<T>::infinity()) {  // a query that sees no key
        std::fill_n(row, block.cols, T(0));
        std::fill_n(d_row, block.cols, T(0));
        continue;
      }
      changes->Mask(head, query + i, key, visible, row);
      if (changes->drops()) {
        std::fill_n(factors, visible, T(1));
        changes->Drop(head, query + i, key, visible, factors);
        for (int64_t j = 0; j < visible; ++j) d_row[j] *= factors[j];
      }
      ScoreGradients({1, block.cols, visible}, lse_rows + i, delta + i, result_scale, row, d_row);
      if (changes->drops()) {
        for (int64_t j = 0; j < visible; ++j) row[j] *= factors[j];
      }
    }
  }
};

// Backward: one task a key head, since dk and dv sum over the queries and query heads that read it.
template <class T>
class Backward {
 public:
  Backward(const AttentionExtents& extents, const AttentionAttributes& attributes, const GradTensors& tensors,
           const ScoreChanges* changes)
      : block_(extents, attributes, static_cast<T>(AttentionScale(attributes, extents.e)), tensors, changes),
        n_(extents),
        dq_(tensors.dq, extents),
        dk_(tensors.dk, extents),
        dv_(tensors.dv, extents) {}

  // dq, dk and dv must be 0.
  void Run(KernelContext& context) const {
    RunWithWorkspace<T>(context, n_.b * n_.h, block_.WorkspaceElements(), [&](int64_t task, T* workspace) {
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
    block_.Delta(head, query, rows, delta);
    const HeadIndex key_head = {head.b, head.h, 0};
    const int64_t keys = block_.mask.KeysBefore(query + rows, n_.t);
    for (int64_t key = 0; key < keys; key += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, keys - key);
      const T* const d_scores = scores + rows * cols;
      block_.Run(head, query, rows, key, cols, delta, scores);
      // dv [cols, e] += p^T [cols, rows] dy [rows, e]; dk [cols, e] += ds^T q; dq [rows, e] += ds k
      const GemmMatrix<T> p_transposed = {scores, cols, /*transposed=*/true};
      const GemmMatrix<T> ds_transposed = {d_scores, cols, /*transposed=*/true};
      Gemm<T>({cols, n_.e, rows}, T(1), p_transposed, block_.dy.Matrix(head, query), /*accumulate=*/true,
              dv_.Head(key_head, key), dv_.row_stride());
      Gemm<T>({cols, n_.e, rows}, T(1), ds_transposed, block_.q.Matrix(head, query), /*accumulate=*/true,
              dk_.Head(key_head, key), dk_.row_stride());
      Gemm<T>({rows, n_.e, cols}, T(1), {d_scores, cols}, block_.k.Matrix(key_head, key), /*accumulate=*/true,
              dq_.Head(head, query), dq_.row_stride());
    }
  }

  BlockGradients<T> block_;
  AttentionExtents n_;
  HeadMatrices<T> dq_;
  HeadMatrices<T> dk_;
  HeadMatrices<T> dv_;
};

// The gradient of an added mask: one task for each batch element, head and block of queries that the mask
// tells apart, which walks over those that it does not.
template <class T>
class MaskBackward {
 public:
  // Which of the extents the mask has, the rest being 1; `changes` finds its elements.
  MaskBackward(const AttentionExtents& extents, const AttentionExtents& own,
               const AttentionAttributes& attributes, const GradTensors& tensors, const ScoreChanges& changes,
               T* d_mask)
      : block_(extents, attributes, T(1), tensors, &changes), n_(extents), own_(own), d_mask_(d_mask) {}

  // d_mask must be 0.
  void Run(KernelContext& context) const {
    const int64_t own_heads = own_.h * own_.g;
    const int64_t blocks = own_.s == n_.s ? (n_.s + kQueryBlock - 1) / kQueryBlock : 1;
    RunWithWorkspace<T>(context, own_.b * own_heads * blocks, block_.WorkspaceElements(),
                        [&](int64_t task, T* workspace) {
                          const int64_t begin = task % blocks * kQueryBlock;
                          const int64_t end = blocks == 1 ? n_.s : std::min(n_.s, begin + kQueryBlock);
                          const HeadIndex own = {task / blocks / own_heads, task / blocks / own_.g % own_.h,
                                                 task / blocks % own_.g};
                          for (int64_t b = own.b; b < n_.b; b += own_.b) {
                            for (int64_t h = own.h; h < n_.h; h += own_.h) {
                              for (int64_t g = own.g; g < n_.g; g += own_.g) {
                                for (int64_t query = begin; query < end; query += kQueryBlock) {
                                  RunBlock({b, h, g}, query, std::min(kQueryBlock, end - query), workspace);
                                }
                              }
                            }
                          }
                        });
  }

 private:
  void RunBlock(const HeadIndex& head, int64_t query, int64_t rows, T* workspace) const {
    T* const delta = workspace;
    T* const scores = delta + rows;
    block_.Delta(head, query, rows, delta);
    const int64_t keys = block_.mask.KeysBefore(query + rows, n_.t);
    for (int64_t key = 0; key < keys; key += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, keys - key);
      block_.Run(head, query, rows, key, cols, delta, scores);
      const T* from = scores + rows * cols;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          d_mask_[block_.changes->MaskOffset(head, query + i, key + j)] += *from++;
        }
      }
    }
  }

  BlockGradients<T> block_;
  AttentionExtents n_;
  AttentionExtents own_;
  T* d_mask_;
};

// The operands by number, in the dtype to compute in; results are made by the caller.
GradTensors OperandsOf(const KernelCallBase& call, int y, int lse, int dy) {
  const DType dtype = AttentionDType(call.inputs[0].dtype());
  const auto operand = [&](int i) { return AsHeads(call.context, call.inputs[i], dtype); };
  const Tensor& sums = call.inputs[lse];
  GradTensors tensors;
  tensors.q = operand(0);
  tensors.k = operand(1);
  tensors.v = operand(2);
  tensors.y = operand(y);
  tensors.lse = sums.IsContiguous() ? sums : ParallelClone(call.context.pool, sums, call.context.allocator);
  tensors.dy = operand(dy);
  return tensors;
}

// `out`, or a tensor like it in the dtype to compute in; zero.
Tensor ZeroResult(KernelContext& context, const Tensor& out) {
  const DType dtype = AttentionDType(out.dtype());
  const Tensor to = out.dtype() == dtype ? out : Tensor::Empty(context.allocator, dtype, out.shape());
  FillTensor(to, 0);
  return to;
}

void Deliver(KernelContext& context, const Tensor& result, const Tensor& out) {
  if (result.dtype() != out.dtype()) ParallelCopy(context.pool, result, out);
}

void RunBackward(const KernelCallBase& call, const AttentionAttributes& attributes, GradTensors tensors,
                 const AttentionExtents& extents, const ScoreChanges* changes) {
  tensors.dq = ZeroResult(call.context, call.outputs[0]);
  tensors.dk = ZeroResult(call.context, call.outputs[1]);
  tensors.dv = ZeroResult(call.context, call.outputs[2]);
  if (tensors.q.num_elements() > 0 && tensors.k.num_elements() > 0) {
    if (tensors.q.dtype() == DType::kF64) {
      Backward<double>(extents, attributes, tensors, changes).Run(call.context);
    } else {
      Backward<float>(extents, attributes, tensors, changes).Run(call.context);
    }
  }
  Deliver(call.context, tensors.dq, call.outputs[0]);
  Deliver(call.context, tensors.dk, call.outputs[1]);
  Deliver(call.context, tensors.dv, call.outputs[2]);
}

void AttentionGrad(const KernelCall<AttentionAttributes, NoScalars>& call) {
  const GradTensors tensors = OperandsOf(call, /*y=*/3, /*lse=*/4, /*dy=*/5);
  RunBackward(call, call.attributes(), tensors, AttentionExtents::Of(tensors.q, tensors.k), nullptr);
}

using MaskedCall = KernelCall<AttentionAttributes, DropoutScalars>;

void MaskedAttentionGrad(const MaskedCall& call) {
  const GradTensors tensors = OperandsOf(call, /*y=*/4, /*lse=*/5, /*dy=*/6);
  const AttentionExtents extents = AttentionExtents::Of(tensors.q, tensors.k);
  const ScoreChanges changes(extents, call.inputs[3], call.input_boxes[0], call.scalars());
  RunBackward(call, call.attributes(), tensors, extents, &changes);
}

// The extents that a mask has of those of the scores.
AttentionExtents MaskExtents(const AttentionExtents& n, const Shape& mask) {
  const bool split = mask.ndim() == 5;
  AttentionExtents own = {.b = mask[0], .s = mask[split ? 3 : 2], .t = mask[split ? 4 : 3], .e = n.e};
  own.h = split ? mask[1] : mask[1] == 1 ? 1 : n.h;
  own.g = split ? mask[2] : mask[1] == 1 ? 1 : n.g;
  return own;
}

void MaskedAttentionMaskGrad(const MaskedCall& call) {
  KernelContext& context = call.context;
  const GradTensors tensors = OperandsOf(call, /*y=*/4, /*lse=*/5, /*dy=*/6);
  const AttentionExtents extents = AttentionExtents::Of(tensors.q, tensors.k);
  // A row-major mask, since its gradient, which has the same strides, is.
  const Tensor mask = call.inputs[3].IsContiguous()
                          ? call.inputs[3]
                          : ParallelClone(context.pool, call.inputs[3], context.allocator);
  const ScoreChanges changes(extents, mask, call.input_boxes[0], call.scalars());
  const Tensor d_mask = ZeroResult(context, call.outputs[0]);
  const AttentionExtents own = MaskExtents(extents, mask.shape());
  if (tensors.q.num_elements() > 0 && tensors.k.num_elements() > 0) {
    if (d_mask.dtype() == DType::kF64) {
      MaskBackward<double>(extents, own, call.attributes(), tensors, changes, d_mask.data<double>())
          .Run(context);
    } else {
      MaskBackward<float>(extents, own, call.attributes(), tensors, changes, d_mask.data<float>())
          .Run(context);
    }
  }
  Deliver(context, d_mask, call.outputs[0]);
}

const RegisterKernel kRegister(kAttentionGrad, DeviceType::kCpu, AttentionGrad);
const RegisterKernel kRegisterMasked(kMaskedAttentionGrad, DeviceType::kCpu, MaskedAttentionGrad);
const RegisterKernel kRegisterMask(kMaskedAttentionMaskGrad, DeviceType::kCpu, MaskedAttentionMaskGrad);

}  // namespace
}  // namespace weft
