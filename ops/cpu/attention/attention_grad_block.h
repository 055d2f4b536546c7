#ifndef WEFT_OPS_CPU_ATTENTION_ATTENTION_GRAD_BLOCK_H_
#define WEFT_OPS_CPU_ATTENTION_ATTENTION_GRAD_BLOCK_H_

#include <algorithm>
#include <cstdint>

#include "ops/cpu/attention/attention_heads.h"
#include "ops/cpu/attention/attention_scores.h"
#include "ops/cpu/attention/block_product.h"
#include "ops/cpu/attention/score_changes.h"

namespace weft {

// The operands and results of one call of attention's gradient, as HeadTensor needs them.
struct AttentionGradTensors {
  Tensor q, k, v, y, lse, dy;
  Tensor dq, dk, dv;
};

// Keys whose scores are in memory at once in backward, for kQueryBlock queries. A multiple of kPanelColumns.
inline constexpr int64_t kGradKeyBlock = 256;

// What the gradients of q, k and v and that of a mask begin with: one block of scores, and what it passes
// back. The scores are computed again from q, k and lse.
template <class T>
class AttentionGradBlock {
 public:
  // What one task works in.
  struct Workspace {
    // Keys and values of one block of keys, transposed.
    int64_t key = 0, cols = 0;
    T* k_panels = nullptr;
    T* v_panels = nullptr;
    // One block of queries: [rows, padded e].
    HeadIndex head;
    int64_t query = 0, rows = 0;
    T* q = nullptr;
    T* dy = nullptr;
    T* delta = nullptr;  // [rows]: sum over e of dy y, which the softmax's own sum passes back
    // Of the two together: [rows, score_stride].
    T* probabilities = nullptr;  // that multiplied v
    T* gradients = nullptr;      // of scale q k^T + mask
    T* factors = nullptr;        // of dropout
    T* scratch = nullptr;        // [kPanelColumns, padded e]
  };

  // `changes` may be null: no mask and no dropout.
  AttentionGradBlock(const AttentionExtents& extents, const AttentionAttributes& attributes,
                     const AttentionGradTensors& tensors, const ScoreChanges* changes);

  Workspace Carve(WorkspaceCarver<T>& carver) const;

  // The keys [key, key + cols) of a key head.
  void LoadKeys(const HeadIndex& head, int64_t key, int64_t cols, Workspace& w) const;
  // The queries [query, query + rows) of a head.
  void LoadQueries(const HeadIndex& head, int64_t query, int64_t rows, Workspace& w) const;

  // The keys of the block that any of the loaded queries sees: none if negative.
  int64_t SeenCols(const Workspace& w) const {
    return std::min(w.cols, mask.KeysBefore(w.query + w.rows, n.t) - w.key);
  }

  // Fills probabilities and gradients [rows, SeenCols] of the loaded keys and queries, 0 where a query does
  // not see a key.
  void Run(const Workspace& w) const;

  int64_t score_stride() const { return RoundUpToLanes(std::min(kGradKeyBlock, n.t)); }

  const AttentionExtents n;
  const AttentionMask mask;
  const T scale;
  const HeadTensor q, k, v, y, dy;
  const T* const lse;
  const ScoreChanges* const changes;

 private:
  void RunChanged(const Workspace& w, const ScoreBlock& block) const;
};

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_ATTENTION_GRAD_BLOCK_H_
