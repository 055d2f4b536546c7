#include "ops/cpu/attention/attention_grad_block.h"

#include <limits>

namespace weft {

template <class T>
AttentionGradBlock<T>::AttentionGradBlock(const AttentionExtents& extents,
                                          const AttentionAttributes& attributes,
                                          const AttentionGradTensors& tensors,
                                          const ScoreChanges* score_changes)
    : n(extents),
      mask{attributes.causal, extents.t - extents.s},
      scale(static_cast<T>(AttentionScale(attributes, extents.e))),
      q(tensors.q, extents),
      k(tensors.k, extents),
      v(tensors.v, extents),
      y(tensors.y, extents),
      dy(tensors.dy, extents),
      lse(tensors.lse.data<T>()),
      changes(score_changes) {}

template <class T>
typename AttentionGradBlock<T>::Workspace AttentionGradBlock<T>::Carve(WorkspaceCarver<T>& carver) const {
  const int64_t rows = std::min(kQueryBlock, n.s);
  const int64_t panels = PanelElements(std::min(kGradKeyBlock, n.t), n.e);
  Workspace w;
  w.k_panels = carver.Take(panels);
  w.v_panels = carver.Take(panels);
  w.q = carver.Take(rows * n.padded_e());
  w.dy = carver.Take(rows * n.padded_e());
  w.delta = carver.Take(rows);
  w.probabilities = carver.Take(rows * score_stride());
  w.gradients = carver.Take(rows * score_stride());
  if (changes != nullptr && changes->drops()) w.factors = carver.Take(rows * score_stride());
  w.scratch = carver.Take(kPanelColumns * n.padded_e());
  return w;
}

// Transposed once for all blocks of queries that see these keys; the products take them as right operands.
template <class T>
void AttentionGradBlock<T>::LoadKeys(const HeadIndex& head, int64_t key, int64_t cols, Workspace& w) const {
  const HeadIndex key_head = {head.b, head.h, 0};
  w.key = key;
  w.cols = cols;
  PrefetchRows(v.Rows(key_head, key), cols, n.e);
  PackPanels(k.Rows(key_head, key), cols, n.e, w.scratch, w.k_panels);
  PackPanels(v.Rows(key_head, key), cols, n.e, w.scratch, w.v_panels);
}

template <class T>
void AttentionGradBlock<T>::LoadQueries(const HeadIndex& head, int64_t query, int64_t rows,
                                        Workspace& w) const {
  w.head = head;
  w.query = query;
  w.rows = rows;
  for (const HeadTensor* tensor : {&dy, &y}) PrefetchRows(tensor->Rows(head, query), rows, n.e);
  // Packed even where they could stay: rows of a packed qkv fall into few sets of the first cache.
  PackRows(q.Rows(head, query), rows, n.e, w.q);
  const RowBlock<T> dy_rows = PackRows(dy.Rows(head, query), rows, n.e, w.dy);
  // scratch is the same memory that LoadKeys packs through, which is done by now.
  static_assert(kQueryBlock <= kPanelColumns, "scratch holds a block of queries");
  const RowBlock<T> y_rows = RowsInPlace(y.Rows(head, query), rows, n.e, /*padded=*/false, w.scratch);
  // delta = sum over e of dy y equals the sum over keys of p dp, which the softmax's own gradient subtracts:
  // by e numbers instead of t, and before any score is made.
  // Source: Dao et al., "FlashAttention", arXiv 2205.14135.
  RowDots(rows, n.e, y_rows.data, y_rows.ld, dy_rows.data, dy_rows.ld, w.delta);
}

template <class T>
void AttentionGradBlock<T>::Run(const Workspace& w) const {
  const int64_t cols = SeenCols(w);
  const ScoreBlock block = {w.rows, cols, score_stride(), mask.Visible(w.query, w.key, cols)};
  const int64_t panel = n.e * kPanelColumns;
  // scores [rows, cols] = scale q [rows, e] k^T [e, cols]; gradients = dy [rows, e] v^T [e, cols]
  // Nothing of size s t was saved: scores are made anew from q and k, and lse turns them into probabilities
  // without a second softmax.
  BlockProduct<T> product = {.m = w.rows, .n = cols, .k = n.e, .alpha = scale, .columns = block.visible};
  MultiplyBlocks(product, {w.q, n.padded_e()}, {w.k_panels, kPanelColumns, panel}, w.probabilities,
                 block.stride);
  product.alpha = 1;
  MultiplyBlocks(product, {w.dy, n.padded_e()}, {w.v_panels, kPanelColumns, panel}, w.gradients,
                 block.stride);
  if (changes == nullptr) {
    const T* const lse_rows = lse + ((w.head.b * n.h + w.head.h) * n.g + w.head.g) * n.s + w.query;
    ScoreGradients(block, lse_rows, w.delta, w.probabilities, w.gradients);
  } else {
    RunChanged(w, block);
  }
}

// Row by row, since a mask and dropout are found by row. The order is that of the chain rule: through dropout
// first, then through the softmax.
template <class T>
void AttentionGradBlock<T>::RunChanged(const Workspace& w, const ScoreBlock& block) const {
  const T* const lse_rows = lse + ((w.head.b * n.h + w.head.h) * n.g + w.head.g) * n.s + w.query;
  for (int64_t i = 0; i < block.rows; ++i) {
    T* const row = w.probabilities + i * block.stride;
    T* const d_row = w.gradients + i * block.stride;
    const int64_t visible = block.VisibleIn(i);
    // Its probabilities would be exp(-inf - -inf).
    if (lse_rows[i] == -std::numeric_limits<T>::infinity()) {  // a query that sees no key
      std::fill_n(row, block.cols, T(0));
      std::fill_n(d_row, block.cols, T(0));
      continue;
    }
    changes->Mask(w.head, w.query + i, w.key, visible, row);
    T* const factors = w.factors == nullptr ? nullptr : w.factors + i * block.stride;
    // Which elements were dropped is not saved: the key and the element's global index make the
    // same random bits again.
    if (factors != nullptr) {
      std::fill_n(factors, visible, T(1));
      changes->Drop(w.head, w.query + i, w.key, visible, factors);
      for (int64_t j = 0; j < visible; ++j) d_row[j] *= factors[j];
    }
    ScoreGradients({1, block.cols, block.stride, visible}, lse_rows + i, w.delta + i, row, d_row);
    // The softmax's gradient is of the probabilities before dropout; those that multiplied v, which dv wants,
    // are after it.
    if (factors != nullptr) {
      for (int64_t j = 0; j < visible; ++j) row[j] *= factors[j];
    }
  }
}

template class AttentionGradBlock<float>;
template class AttentionGradBlock<double>;

}  // namespace weft
