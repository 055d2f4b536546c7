#include "ops/attention/attention.h"

#include <limits>
#include <optional>

#include "ops/attention/masked_attention.h"
#include "ops/cpu/attention/attention_heads.h"
#include "ops/cpu/attention/attention_scores.h"
#include "ops/cpu/attention/block_product.h"
#include "ops/cpu/attention/score_changes.h"
#include "ops/cpu/spans/workspace.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// Keys whose scores are in memory at once, for kQueryBlock queries: 64 KiB in f32, so that they and their
// keys stay in the second cache. A multiple of kPanelColumns.
constexpr int64_t kKeyBlock = 256;
// Up to this many queries a head are multiplied by rows of keys as they lie: fewer than repay the transpose.
constexpr int64_t kFewQueries = 4;

struct ForwardTensors {
  Tensor q, k, v, y, lse;
};

// Forward: a head's keys and values are packed once, then each block of queries walks over them with a
// running softmax. Few queries read them as they lie, converted a block at a time.
// Scores and probabilities of a head are never whole in memory: blocks of them are made, used and
// overwritten, as in Dao et al., "FlashAttention", arXiv 2205.14135.
template <class T>
class Forward {
 public:
  // `changes` may be null: no mask and no dropout.
  Forward(const AttentionExtents& extents, const AttentionAttributes& attributes,
          const ForwardTensors& tensors, const ScoreChanges* changes)
      : n_(extents),
        mask_{attributes.causal, extents.t - extents.s},
        scale_(static_cast<T>(AttentionScale(attributes, extents.e))),
        few_queries_(extents.s <= kFewQueries),
        blocks_((extents.s + kQueryBlock - 1) / kQueryBlock),
        q_(tensors.q, extents),
        k_(tensors.k, extents),
        v_(tensors.v, extents),
        y_(tensors.y, extents),
        lse_(tensors.lse.data<T>()),
        changes_(changes) {}

  void Run(KernelContext& context) const {
    if (n_.key_heads() >= kHeadsPerThread * context.pool.num_threads()) {
      RunByHeads(context);
    } else {
      RunByBlocks(context);
    }
  }

 private:
  // A head's keys, transposed, and its values; nothing where queries are few.
  struct Keys {
    BlockRight<T> panels;
    RowBlock<T> values;
  };
  // Fewer heads than that, and threads would wait for the last one.
  static constexpr int64_t kHeadsPerThread = 3;

  // One task a key head, so that what is packed stays in the second cache.
  // The query heads of a key head share its task, hence its packed keys: with grouped queries keys are packed
  // once for all of the group.
  void RunByHeads(KernelContext& context) const {
    const int64_t packed = KeyElements();
    RunWithWorkspace<T>(context, n_.key_heads(), packed + BlockElements(), [&](int64_t task, T* workspace) {
      HeadIndex head = HeadIndex::Key(n_, task);
      const Keys keys = PackKeys(head, workspace);
      for (; head.g < n_.g; ++head.g) {
        for (int64_t block = 0; block < blocks_; ++block) RunBlock(head, block, keys, workspace + packed);
      }
    });
  }

  // One task a block of queries. Both ways make the same bits.
  // Here all threads read the same packed keys, which therefore are packed in full before the first block
  // begins. The memory for it is that of all heads, which are few.
  void RunByBlocks(KernelContext& context) const {
    const Tensor packed = Tensor::Empty(context.allocator, kDTypeOf<T>, {n_.key_heads(), KeyElements()});
    const auto buffer = [&](int64_t key_head) { return packed.data<T>() + key_head * KeyElements(); };
    std::vector<Keys> keys(n_.key_heads());
    context.pool.Run(n_.key_heads(),
                     [&](int64_t task) { keys[task] = PackKeys(HeadIndex::Key(n_, task), buffer(task)); });
    RunWithWorkspace<T>(context, n_.heads() * blocks_, BlockElements(), [&](int64_t task, T* workspace) {
      // The last queries of a head first: under a causal mask they take longest.
      const int64_t head = task / blocks_;
      RunBlock(HeadIndex::Query(n_, head), blocks_ - 1 - task % blocks_, keys[head / n_.g], workspace);
    });
  }

  int64_t KeyElements() const {
    if (few_queries_) return 0;
    WorkspaceCarver<T> count(nullptr);
    count.Take(PanelElements(n_.t, n_.e));
    count.Take(n_.t * n_.padded_e());
    count.Take(kPanelColumns * n_.padded_e());
    return count.used();
  }

  // Keys are the right operand of q k^T with e along the sum, so they are transposed. Values are right
  // operands as they lie, and stay in place where their dtype and e allow it.
  Keys PackKeys(const HeadIndex& key_head, T* buffer) const {
    if (few_queries_) return {};
    WorkspaceCarver<T> carver(buffer);
    T* const k = carver.Take(PanelElements(n_.t, n_.e));
    T* const v = carver.Take(n_.t * n_.padded_e());
    T* const scratch = carver.Take(kPanelColumns * n_.padded_e());
    const HeadRows v_rows = v_.Rows(key_head, 0);
    PrefetchRows(v_rows, n_.t, n_.e);
    return {PackPanels(k_.Rows(key_head, 0), n_.t, n_.e, scratch, k),
            RowsInPlace(v_rows, n_.t, n_.e, /*padded=*/true, v)};
  }

  // One block of queries as it goes over the keys.
  struct Block {
    HeadIndex head;
    int64_t query, rows;
    RowBlock<T> q;
    T* max;
    T* sum;
    T* rescale;
    T* y;       // [rows, padded_e]
    T* scores;  // [rows, score_stride]
    T* keys;    // [kKeyBlock, padded_e], as values, where queries are few
    T* values;
  };
  int64_t score_stride() const { return RoundUpToLanes(std::min(kKeyBlock, n_.t)); }

  Block Carve(WorkspaceCarver<T>& carver) const {
    const int64_t rows = std::min(kQueryBlock, n_.s);
    Block block = {};
    block.q.data = carver.Take(rows * n_.padded_e());
    block.max = carver.Take(rows);
    block.sum = carver.Take(rows);
    block.rescale = carver.Take(rows);
    block.y = carver.Take(rows * n_.padded_e());
    block.scores = carver.Take(rows * score_stride());
    if (few_queries_) {
      block.keys = carver.Take(score_stride() * n_.padded_e());
      block.values = carver.Take(score_stride() * n_.padded_e());
    }
    return block;
  }
  int64_t BlockElements() const {
    WorkspaceCarver<T> count(nullptr);
    Carve(count);
    return count.used();
  }

  void RunBlock(const HeadIndex& head, int64_t index, const Keys& keys, T* workspace) const {
    WorkspaceCarver<T> carver(workspace);
    Block block = Carve(carver);
    block.head = head;
    block.query = index * kQueryBlock;
    block.rows = std::min(kQueryBlock, n_.s - block.query);
    // Padding matters to MultiplyByRows alone, which sums over whole vectors of e; tiles
    // broadcast q element by element.
    block.q = RowsInPlace(q_.Rows(head, block.query), block.rows, n_.e, /*padded=*/few_queries_,
                          const_cast<T*>(block.q.data));
    std::fill_n(block.max, block.rows, -std::numeric_limits<T>::infinity());
    std::fill_n(block.sum, block.rows, T(0));
    const int64_t seen = mask_.KeysBefore(block.query + block.rows, n_.t);
    for (int64_t key = 0; key < seen; key += kKeyBlock)
      Step(block, keys, key, std::min(kKeyBlock, seen - key));
    T* const lse = lse_ + ((head.b * n_.h + head.h) * n_.g + head.g) * n_.s + block.query;
    const HeadRows y = y_.Rows(head, block.query);
    // The division by the sum waits for the last block: once per element of y instead of once per block of
    // keys. Halves are rounded after it, and only then.
    const bool direct = y.dtype == kDTypeOf<T>;
    const SoftmaxResult<T> result = {direct ? reinterpret_cast<T*>(y.data) : block.y,
                                     direct ? y.stride : n_.padded_e(), lse};
    SoftmaxFinish(block.rows, n_.e, block.max, block.sum, block.y, n_.padded_e(), result);
    if (!direct) UnpackRows(block.y, n_.padded_e(), block.rows, n_.e, y);
  }

  void Step(const Block& block, const Keys& keys, int64_t key, int64_t cols) const {
    const ScoreBlock scores = {block.rows, cols, score_stride(), mask_.Visible(block.query, key, cols)};
    const HeadIndex key_head = {block.head.b, block.head.h, 0};
    RowBlock<T> values;
    // Blocks of keys begin at multiples of kKeyBlock, hence of whole panels. `columns` leaves out tiles that
    // a causal mask hides; what is left undefined there the softmax step sets to 0.
    // scores [rows, cols] = scale q [rows, e] k^T [e, cols]
    if (few_queries_) {
      PrefetchRows(v_.Rows(key_head, key), cols, n_.e);
      const RowBlock<T> k = RowsInPlace(k_.Rows(key_head, key), cols, n_.e, /*padded=*/true, block.keys);
      values = RowsInPlace(v_.Rows(key_head, key), cols, n_.e, /*padded=*/true, block.values);
      MultiplyByRows(block.rows, cols, n_.e, scale_, block.q.data, block.q.ld, k.data, k.ld, block.scores,
                     scores.stride);
    } else {
      values = keys.values.From(key);
      BlockRight<T> panels = keys.panels;
      panels.data += key / kPanelColumns * panels.panel;
      MultiplyBlocks<T>({.m = block.rows, .n = cols, .k = n_.e, .alpha = scale_, .columns = scores.visible},
                        block.q.left(), panels, block.scores, scores.stride);
    }
    if (changes_ == nullptr) {
      SoftmaxStep(scores, block.scores, block.max, block.sum, block.rescale);
    } else {
      ChangedSoftmaxStep(scores, block, key);
    }
    // Rescaling is part of the product's last step, so y is read and written once per block of keys. The
    // first block does not read y at all: its memory holds another task's results.
    // y [rows, e] = rescale y + p [rows, cols] v [cols, e]
    MultiplyBlocks<T>({.m = block.rows,
                       .n = n_.e,
                       .k = cols,
                       .accumulate = key > 0,
                       .row_factors = block.rescale,
                       .end = scores.visible},
                      {block.scores, scores.stride}, values.right(), block.y, n_.padded_e());
  }

  // Row by row, since a query that has not seen a key yet has no maximum to subtract. Dropout leaves the sum.
  void ChangedSoftmaxStep(const ScoreBlock& scores, const Block& block, int64_t key) const {
    for (int64_t i = 0; i < scores.rows; ++i) {
      T* const row = block.scores + i * scores.stride;
      const int64_t n = scores.VisibleIn(i);
      // Nothing is seen in this block: 0 is what the product with v expects, and a maximum of -inf, if it is
      // one, must not meet another one in a difference.
      if (!changes_->Mask(block.head, block.query + i, key, n, row)) {
        std::fill_n(row, scores.cols, T(0));
        block.rescale[i] = 1;
        continue;
      }
      SoftmaxStep({1, scores.cols, scores.stride, n}, row, block.max + i, block.sum + i, block.rescale + i);
      // After the step, which has the sum: the softmax is normalised over all probabilities, those that are
      // dropped included.
      if (changes_->drops()) changes_->Drop(block.head, block.query + i, key, n, row);
    }
  }

  AttentionExtents n_;
  AttentionMask mask_;
  T scale_;
  bool few_queries_;
  int64_t blocks_;
  HeadTensor q_;
  HeadTensor k_;
  HeadTensor v_;
  HeadTensor y_;
  T* lse_;
  const ScoreChanges* changes_;
};

// Both ops' kernel; `make_changes(extents)` gives the optional ScoreChanges.
template <class R, class MakeChanges>
void RunForward(const KernelCall<AttentionAttributes, R>& call, const MakeChanges& make_changes) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const auto heads = [&](int operand) { return AsHeads(call.context, call.inputs[operand]); };
  const ForwardTensors tensors = {heads(0), heads(1), heads(2), y, call.outputs[1]};
  const AttentionExtents extents = AttentionExtents::Of(tensors.q, tensors.k);
  const std::optional<ScoreChanges> changes = make_changes(extents);
  const ScoreChanges* const optional = changes ? &*changes : nullptr;
  // Halves compute in float, scores and sums included: a score of bf16 would have 8 bits, and exp makes the
  // absolute error of its argument a relative one of its result.
  if (y.dtype() == DType::kF64) {
    Forward<double>(extents, call.attributes(), tensors, optional).Run(call.context);
  } else {
    Forward<float>(extents, call.attributes(), tensors, optional).Run(call.context);
  }
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
