#include <algorithm>

#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/cpu/attention/attention_grad_block.h"
#include "ops/cpu/attention/attention_heads.h"
#include "ops/cpu/attention/block_product.h"
#include "ops/cpu/attention/score_changes.h"
#include "ops/cpu/spans/parallel_copy.h"
#include "ops/cpu/spans/workspace.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Backward: a task walks over blocks of keys of one key head, and for each over the queries that see it, so
// that dk and dv stay in the second cache until they are whole. dq grows from block to block.
//
// Where heads are few their keys are cut into parts, a task each, with a dq of its own; these are added at
// the end, in order. The cut follows from the shape alone, and so do the bits.
// The order of loops is a choice of what must not be shared: with keys outside, dk and dv of a block have one
// writer, without atomics and in a fixed order. All query heads of a key head are in one task for the same
// reason: they add to the same dk and dv.
template <class T>
class Backward {
 public:
  Backward(const AttentionExtents& extents, const AttentionAttributes& attributes,
           const AttentionGradTensors& tensors, const ScoreChanges* changes)
      : block_(extents, attributes, tensors, changes),
        n_(extents),
        dq_(tensors.dq, extents),
        dk_(tensors.dk, extents),
        dv_(tensors.dv, extents),
        key_blocks_((extents.t + kGradKeyBlock - 1) / kGradKeyBlock),
        parts_(Parts(extents.key_heads(), key_blocks_)) {}

  void Run(KernelContext& context) const {
    if (n_.key_heads() == 0) return;
    const Tensor dq_parts =
        parts_ == 1 ? Tensor()
                    : Tensor::Empty(context.allocator, kDTypeOf<T>, {n_.key_heads() * parts_, DqElements()});
    RunWithWorkspace<T>(context, n_.key_heads() * parts_, TaskElements(), [&](int64_t task, T* workspace) {
      // The first keys first: under a causal mask most queries see them.
      const int64_t key_head = task % n_.key_heads(), part = task / n_.key_heads();
      WorkspaceCarver<T> carver(workspace);
      Task of_task = Carve(carver);
      if (parts_ > 1) of_task.dq = dq_parts.data<T>() + (key_head * parts_ + part) * DqElements();
      RunPart(HeadIndex::Key(n_, key_head), part, of_task);
    });
    if (parts_ > 1) AddParts(context, dq_parts.data<T>());
  }

 private:
  // Enough tasks for several threads, where the heads themselves are not.
  // A constant and not the number of threads, since dq is summed part by part and its bits depend
  // on the parts.
  static constexpr int64_t kEnoughTasks = 8;
  static int64_t Parts(int64_t key_heads, int64_t key_blocks) {
    const int64_t wanted = (kEnoughTasks + key_heads - 1) / std::max<int64_t>(1, key_heads);
    return std::max<int64_t>(1, std::min(wanted, key_blocks));
  }

  struct Task {
    typename AttentionGradBlock<T>::Workspace w;
    T* k;   // [cols, padded e]: the block of keys
    T* dk;  // [cols, padded e]
    T* dv;  // [cols, padded e]
    T* dq;  // [g, s, padded e]
  };
  // dq is kept for all queries of a key head, as T and with padded rows: every block of keys adds to it, and
  // halves are rounded once at the end.
  int64_t DqElements() const { return n_.g * n_.s * n_.padded_e(); }

  Task Carve(WorkspaceCarver<T>& carver) const {
    const int64_t elements = std::min(kGradKeyBlock, n_.t) * n_.padded_e();
    Task task = {};
    task.w = block_.Carve(carver);
    task.k = carver.Take(elements);
    task.dk = carver.Take(elements);
    task.dv = carver.Take(elements);
    if (parts_ == 1) task.dq = carver.Take(DqElements());
    return task;
  }
  int64_t TaskElements() const {
    WorkspaceCarver<T> count(nullptr);
    Carve(count);
    return count.used();
  }

  void RunPart(HeadIndex head, int64_t part, Task& task) const {
    std::fill_n(task.dq, DqElements(), T(0));
    if (parts_ == 1) PrefetchRows(dq_.Rows(head, 0), n_.s, n_.e);
    const int64_t begin = key_blocks_ * part / parts_, end = key_blocks_ * (part + 1) / parts_;
    for (int64_t block = begin; block < end; ++block) RunKeys(head, block * kGradKeyBlock, task);
    if (parts_ > 1) return;
    for (; head.g < n_.g; ++head.g) {
      UnpackRows(task.dq + head.g * n_.s * n_.padded_e(), n_.padded_e(), n_.s, n_.e, dq_.Rows(head, 0));
    }
  }

  void RunKeys(HeadIndex head, int64_t key, Task& task) const {
    const int64_t cols = std::min(kGradKeyBlock, n_.t - key);
    block_.LoadKeys(head, key, cols, task.w);
    const RowBlock<T> k = RowsInPlace(block_.k.Rows(head, key), cols, n_.e, /*padded=*/true, task.k);
    PrefetchRows(dk_.Rows(head, key), cols, n_.e);
    PrefetchRows(dv_.Rows(head, key), cols, n_.e);
    std::fill_n(task.dk, cols * n_.padded_e(), T(0));
    std::fill_n(task.dv, cols * n_.padded_e(), T(0));
    // Blocks of queries begin at multiples of kQueryBlock whatever the keys, so that a part adds to dq by the
    // same blocks as any other. Queries before the first that sees a key have probability 0 here.
    const int64_t first = block_.mask.FirstQuery(key) / kQueryBlock * kQueryBlock;
    for (HeadIndex of = head; of.g < n_.g; ++of.g) {
      for (int64_t query = first; query < n_.s; query += kQueryBlock) {
        block_.LoadQueries(of, query, std::min(kQueryBlock, n_.s - query), task.w);
        RunBlock(k, task);
      }
    }
    UnpackRows(task.dk, n_.padded_e(), cols, n_.e, dk_.Rows(head, key));
    UnpackRows(task.dv, n_.padded_e(), cols, n_.e, dv_.Rows(head, key));
  }

  void RunBlock(const RowBlock<T>& k, const Task& task) const {
    const auto& w = task.w;
    const int64_t cols = block_.SeenCols(w), e = n_.padded_e(), stride = block_.score_stride();
    if (cols <= 0) return;
    block_.Run(w);
    const int64_t visible = block_.mask.Visible(w.query, w.key, cols);
    // Key j is seen from query j - visible + 1 on.
    BlockProduct<T> by_key = {.m = cols, .n = n_.e, .k = w.rows, .accumulate = true, .begin = 1 - visible};
    // The scale is a factor of the products, of e elements per row, and not of the gradients of scores, of
    // which there are up to 256 per row.
    // dv [cols, e] += p^T [cols, rows] dy [rows, e]; dk [cols, e] += scale ds^T q; dq [rows, e] += scale ds k
    MultiplyBlocks(by_key, {w.probabilities, stride, /*transposed=*/true}, {w.dy, e}, task.dv, e);
    by_key.alpha = block_.scale;
    MultiplyBlocks(by_key, {w.gradients, stride, /*transposed=*/true}, {w.q, e}, task.dk, e);
    MultiplyBlocks<T>(
        {.m = w.rows, .n = n_.e, .k = cols, .alpha = block_.scale, .accumulate = true, .end = visible},
        {w.gradients, stride}, k.right(), task.dq + (w.head.g * n_.s + w.query) * e, e);
  }

  // dq = the sum of its parts, [key heads, parts, g, s, padded e].
  // Parts are added in their order by one task per block of queries, into the first of them: no memory more,
  // and the same bits whoever finishes first.
  void AddParts(KernelContext& context, T* parts) const {
    const int64_t blocks = (n_.s + kQueryBlock - 1) / kQueryBlock, e = n_.padded_e();
    context.pool.Run(n_.heads() * blocks, [&](int64_t task) {
      const int64_t index = task / blocks, query = task % blocks * kQueryBlock;
      const int64_t rows = std::min(kQueryBlock, n_.s - query);
      T* const sum = parts + index / n_.g * parts_ * DqElements() + (index % n_.g * n_.s + query) * e;
      for (int64_t part = 1; part < parts_; ++part) {
        const T* const from = sum + part * DqElements();
        for (int64_t i = 0; i < rows * e; ++i) sum[i] += from[i];
      }
      UnpackRows(sum, e, rows, n_.e, dq_.Rows(HeadIndex::Query(n_, index), query));
    });
  }

  AttentionGradBlock<T> block_;
  AttentionExtents n_;
  HeadTensor dq_;
  HeadTensor dk_;
  HeadTensor dv_;
  int64_t key_blocks_;
  int64_t parts_;
};

// The gradient of an added mask: one task for each batch element, head and block of queries that the mask
// tells apart, which walks over those that it does not.
// Every element of the mask's gradient is the sum of all scores' gradients that it was added to. A task has
// all of those, so it adds without atomics and in a fixed order.
// The scores are made a third time, since to keep their gradients from Backward would take memory
// of s t per head.
template <class T>
class MaskBackward {
 public:
  // Which of the extents the mask has, the rest being 1; `changes` finds its elements.
  MaskBackward(const AttentionExtents& extents, const AttentionExtents& own,
               const AttentionAttributes& attributes, const AttentionGradTensors& tensors,
               const ScoreChanges& changes, T* d_mask)
      : block_(extents, attributes, tensors, &changes), n_(extents), own_(own), d_mask_(d_mask) {}

  // d_mask must be 0.
  void Run(KernelContext& context) const {
    const int64_t own_heads = own_.h * own_.g;
    const int64_t blocks = own_.s == n_.s ? (n_.s + kQueryBlock - 1) / kQueryBlock : 1;
    WorkspaceCarver<T> count(nullptr);
    block_.Carve(count);
    RunWithWorkspace<T>(context, own_.b * own_heads * blocks, count.used(), [&](int64_t task, T* workspace) {
      WorkspaceCarver<T> carver(workspace);
      typename AttentionGradBlock<T>::Workspace w = block_.Carve(carver);
      const int64_t begin = task % blocks * kQueryBlock;
      const int64_t end = blocks == 1 ? n_.s : std::min(n_.s, begin + kQueryBlock);
      const HeadIndex own = {task / blocks / own_heads, task / blocks / own_.g % own_.h,
                             task / blocks % own_.g};
      for (int64_t b = own.b; b < n_.b; b += own_.b) {
        for (int64_t h = own.h; h < n_.h; h += own_.h) {
          for (int64_t g = own.g; g < n_.g; g += own_.g) RunHead({b, h, g}, begin, end, w);
        }
      }
    });
  }

 private:
  // The queries [begin, end) of a head.
  void RunHead(const HeadIndex& head, int64_t begin, int64_t end,
               typename AttentionGradBlock<T>::Workspace& w) const {
    const int64_t keys = block_.mask.KeysBefore(end, n_.t);
    for (int64_t key = 0; key < keys; key += kGradKeyBlock) {
      block_.LoadKeys(head, key, std::min(kGradKeyBlock, n_.t - key), w);
      for (int64_t query = begin; query < end; query += kQueryBlock) {
        block_.LoadQueries(head, query, std::min(kQueryBlock, end - query), w);
        if (block_.SeenCols(w) <= 0) continue;
        block_.Run(w);
        Add(w);
      }
    }
  }

  void Add(const typename AttentionGradBlock<T>::Workspace& w) const {
    const int64_t cols = block_.SeenCols(w);
    for (int64_t i = 0; i < w.rows; ++i) {
      const T* const from = w.gradients + i * block_.score_stride();
      for (int64_t j = 0; j < cols; ++j) {
        d_mask_[block_.changes->MaskOffset(w.head, w.query + i, w.key + j)] += from[j];
      }
    }
  }

  AttentionGradBlock<T> block_;
  AttentionExtents n_;
  AttentionExtents own_;
  T* d_mask_;
};

// The operands by number; results are set by the caller.
AttentionGradTensors OperandsOf(const KernelCallBase& call, int y, int lse, int dy) {
  const auto operand = [&](int i) { return AsHeads(call.context, call.inputs[i]); };
  const Tensor& sums = call.inputs[lse];
  AttentionGradTensors tensors;
  tensors.q = operand(0);
  tensors.k = operand(1);
  tensors.v = operand(2);
  tensors.y = operand(y);
  tensors.lse = sums.IsContiguous() ? sums : ParallelClone(call.context.pool, sums, call.context.allocator);
  tensors.dy = operand(dy);
  return tensors;
}

void RunBackward(const KernelCallBase& call, const AttentionAttributes& attributes,
                 AttentionGradTensors tensors, const AttentionExtents& extents, const ScoreChanges* changes) {
  tensors.dq = call.outputs[0];
  tensors.dk = call.outputs[1];
  tensors.dv = call.outputs[2];
  if (tensors.q.dtype() == DType::kF64) {
    Backward<double>(extents, attributes, tensors, changes).Run(call.context);
  } else {
    Backward<float>(extents, attributes, tensors, changes).Run(call.context);
  }
}

void AttentionGrad(const KernelCall<AttentionAttributes, NoScalars>& call) {
  const AttentionGradTensors tensors = OperandsOf(call, /*y=*/3, /*lse=*/4, /*dy=*/5);
  RunBackward(call, call.attributes(), tensors, AttentionExtents::Of(tensors.q, tensors.k), nullptr);
}

using MaskedCall = KernelCall<AttentionAttributes, DropoutScalars>;

void MaskedAttentionGrad(const MaskedCall& call) {
  const AttentionGradTensors tensors = OperandsOf(call, /*y=*/4, /*lse=*/5, /*dy=*/6);
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
  const AttentionGradTensors tensors = OperandsOf(call, /*y=*/4, /*lse=*/5, /*dy=*/6);
  const AttentionExtents extents = AttentionExtents::Of(tensors.q, tensors.k);
  // A row-major mask, since its gradient, which has the same strides, is.
  const Tensor mask = call.inputs[3].IsContiguous()
                          ? call.inputs[3]
                          : ParallelClone(context.pool, call.inputs[3], context.allocator);
  const ScoreChanges changes(extents, mask, call.input_boxes[0], call.scalars());
  const Tensor& out = call.outputs[0];
  // In f32 for halves: a mask that repeats over batch and heads gets sums of many terms, which
  // are rounded once.
  const DType dtype = out.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Tensor d_mask = out.dtype() == dtype ? out : Tensor::Empty(context.allocator, dtype, out.shape());
  FillTensor(d_mask, 0);
  const AttentionExtents own = MaskExtents(extents, mask.shape());
  if (tensors.q.num_elements() > 0 && tensors.k.num_elements() > 0) {
    if (dtype == DType::kF64) {
      MaskBackward<double>(extents, own, call.attributes(), tensors, changes, d_mask.data<double>())
          .Run(context);
    } else {
      MaskBackward<float>(extents, own, call.attributes(), tensors, changes, d_mask.data<float>())
          .Run(context);
    }
  }
  if (out.dtype() != dtype) ParallelCopy(context.pool, d_mask, out);
}

const RegisterKernel kRegister(kAttentionGrad, DeviceType::kCpu, AttentionGrad);
const RegisterKernel kRegisterMasked(kMaskedAttentionGrad, DeviceType::kCpu, MaskedAttentionGrad);
const RegisterKernel kRegisterMask(kMaskedAttentionMaskGrad, DeviceType::kCpu, MaskedAttentionMaskGrad);

}  // namespace
}  // namespace weft
