#include "ops/attention.h"

#include <cmath>
#include <limits>
#include <optional>

#include "ops/cpu/attention_heads.h"
#include "ops/cpu/attention_scores.h"
#include "ops/cpu/parallel_copy.h"
#include "ops/cpu/score_changes.h"
#include "ops/kernel.h"
#include "ops/masked_attention.h"

namespace weft {
namespace {

// Forward: one task a head and block of queries, which walks over the keys with a running softmax.
template <class T>
class Forward {
 public:
  // `changes` may be null: no mask and no dropout.
  Forward(const AttentionExtents& extents, const AttentionAttributes& attributes, const Tensor& q,
          const Tensor& k, const Tensor& v, const Tensor& y, const Tensor& lse, const ScoreChanges* changes)
      : n_(extents),
        mask_{attributes.causal, extents.t - extents.s},
        scale_(static_cast<T>(AttentionScale(attributes, extents.e))),
        q_(q, extents),
        k_(k, extents),
        v_(v, extents),
        y_(y, extents),
        lse_(lse.data<T>()),
        changes_(changes) {}

  void Run(KernelContext& context) const {
    const int64_t heads = n_.b * n_.h * n_.g;
    const int64_t blocks = (n_.s + kQueryBlock - 1) / kQueryBlock;
    const int64_t rows = std::min(kQueryBlock, n_.s);
    const int64_t elements = rows * (std::min(kKeyBlock, n_.t) + 3);
    RunWithWorkspace<T>(context, heads * blocks, elements, [&](int64_t task, T* workspace) {
      // The last queries first: under a causal mask they take longest.
      const int64_t query = (blocks - 1 - task / heads) * kQueryBlock;
      RunBlock(HeadAt(task % heads), query, std::min(kQueryBlock, n_.s - query), workspace);
    });
  }

 private:
  HeadIndex HeadAt(int64_t index) const { return {index / (n_.h * n_.g), index / n_.g % n_.h, index % n_.g}; }

  void RunBlock(const HeadIndex& head, int64_t query, int64_t rows, T* workspace) const {
    T* const max = workspace;
    T* const sum = max + rows;
    T* const rescale = sum + rows;
    T* const scores = rescale + rows;
    std::fill_n(max, rows, -std::numeric_limits<T>::infinity());
    std::fill_n(sum, rows, T(0));
    T* const y = y_.Head(head, query);
    const int64_t keys = mask_.KeysBefore(query + rows, n_.t);
    for (int64_t key = 0; key < keys; key += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, keys - key);
      // scores [rows, cols] = scale q [rows, e] k^T [e, cols]
      Gemm<T>({rows, cols, n_.e}, scale_, q_.Matrix(head, query), k_.Transposed(head, key),
              /*accumulate=*/false, scores, cols);
      const ScoreBlock block = {rows, cols, mask_.Visible(query, key, cols)};
      if (changes_ == nullptr) {
        SoftmaxStep(block, scores, max, sum, rescale);
      } else {
        ChangedSoftmaxStep(block, head, query, key, scores, max, sum, rescale);
      }
      if (key > 0) ScaleRows(rows, rescale, y);
      // y [rows, e] += p [rows, cols] v [cols, e]
      Gemm<T>({rows, n_.e, cols}, T(1), {scores, cols}, v_.Matrix(head, key), /*accumulate=*/key > 0, y,
              y_.row_stride());
    }
    Finish(head, query, rows, keys, max, sum, y);
  }

  // Row by row, since a query that has not seen a key yet has no maximum to subtract. Dropout leaves the sum.
  void ChangedSoftmaxStep(const ScoreBlock& block, const HeadIndex& head, int64_t query, int64_t key,
                          T* scores, T* max, T* sum, T* rescale) const {
    for (int64_t i = 0; i < block.rows; ++i) {
      T* const row = scores + i * block.cols;
      const int64_t n = block.VisibleIn(i);
      if (!changes_->Mask(head, query + i, key, n, row)) {
        std::fill_n(row, block.cols, T(0));
        rescale[i] = 1;
        continue;
      }
      SoftmaxStep({1, block.cols, n}, row, max + i, sum + i, rescale + i);
      if (changes_->drops()) changes_->Drop(head, query + i, key, n, row);
    }
  }

  void ScaleRows(int64_t rows, const T* factors, T* y) const {
    for (int64_t i = 0; i < rows; ++i) {
      if (factors[i] == T(1)) continue;
      T* const row = y + i * y_.row_stride();
      for (int64_t j = 0; j < n_.e; ++j) row[j] *= factors[i];
    }
  }

  void Finish(const HeadIndex& head, int64_t query, int64_t rows, int64_t keys, const T* max, const T* sum,
              T* y) const {
    T* const lse = lse_ + ((head.b * n_.h + head.h) * n_.g + head.g) * n_.s + query;
    for (int64_t i = 0; i < rows; ++i) {
      T* const row = y + i * y_.row_stride();
      lse[i] = max[i] + std::log(sum[i]);
      if (keys == 0 || sum[i] == 0) {  // nothing to see
        std::fill_n(row, n_.e, T(0));
        continue;
      }
      const T factor = 1 / sum[i];
      for (int64_t j = 0; j < n_.e; ++j) row[j] *= factor;
    }
  }

  AttentionExtents n_;
  AttentionMask mask_;
  T scale_;
  HeadMatrices<T> q_;
  HeadMatrices<T> k_;
  HeadMatrices<T> v_;
  HeadMatrices<T> y_;
  T* lse_;
  const ScoreChanges* changes_;
};

// Both ops' kernel; `make_changes(extents)` gives the optional ScoreChanges.
template <class R, class MakeChanges>
void RunForward(const KernelCall<AttentionAttributes, R>& call, const MakeChanges& make_changes) {
  const Tensor& y = call.outputs[0];
  const DType dtype = AttentionDType(y.dtype());
  const Tensor q = AsHeads(call.context, call.inputs[0], dtype);
  const Tensor k = AsHeads(call.context, call.inputs[1], dtype);
  const Tensor v = AsHeads(call.context, call.inputs[2], dtype);
  if (y.num_elements() == 0) return;
  const bool direct = y.dtype() == dtype;
  const Tensor to = direct ? y : Tensor::Empty(call.context.allocator, dtype, y.shape());
  const AttentionExtents extents = AttentionExtents::Of(q, k);
  const std::optional<ScoreChanges> changes = make_changes(extents);
  const ScoreChanges* const optional = changes ? &*changes : nullptr;
  if (dtype == DType::kF64) {
    Forward<double>(extents, call.attributes(), q, k, v, to, call.outputs[1], optional).Run(call.context);
  } else {
    Forward<float>(extents, call.attributes(), q, k, v, to, call.outputs[1], optional).Run(call.context);
  }
  if (!direct) ParallelCopy(call.context.pool, to, y);
}

void Attention(const KernelCall<AttentionAttributes, NoScalars>& call) {
  RunForward(call, [](const AttentionExtents&) { return std::nullopt; });
}

void MaskedAttention(const KernelCall<AttentionAttributes, DropoutScalars>& call) {
  RunForward(call, [&](const AttentionExtents& extents) {
    return ScoreChanges(extents, call.inputs[3], call.input_boxes[0], call.scalars());
  });
}

const RegisterKernel kRegister(kAttention, DeviceType::kCpu, Attention);
const RegisterKernel kRegisterMasked(kMaskedAttention, DeviceType::kCpu, MaskedAttention);

}  // namespace
}  // namespace weft
