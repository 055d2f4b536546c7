#ifndef WEFT_OPS_CPU_PRODUCT_GEMM_PANELS_H_
#define WEFT_OPS_CPU_PRODUCT_GEMM_PANELS_H_

#include <cstdint>
#include <utility>

#include "ops/cpu/product/gemm.h"
#include "runtime/base/float16.h"

namespace weft {

// The inner part of a packed matrix product, for processors with AVX-512 (bf16: AVX512-BF16 too). Both
// operands are first packed into panels of 32-bit units along k: one f32, or two bf16 that follow one another
// along k (the last pair of an odd k ends in 0).
//
//   row panel     at most kPanelRows rows of a:  unit u of row i at [u * rows + i]
//   column panel  kPanelCols columns of b:       unit u of column j at [u * kPanelCols + j], 0 beyond b
//
// 14 rows of 32 columns are 28 sums in registers: with two vectors of b and one of a, all that there are.
inline constexpr int64_t kPanelRows = 14;
inline constexpr int64_t kPanelCols = 32;
// A row panel is written in whole vectors: this many units beyond its end are overwritten.
inline constexpr int64_t kPanelSlack = 16;

// Whether MultiplyPanels may be called for T.
template <class T>
bool HasPanelProducts();

// Units that k elements take.
template <class T>
constexpr int64_t UnitsOf(int64_t k) {
  constexpr int64_t kElements = 4 / sizeof(T);
  return (k + kElements - 1) / kElements;
}

// Packs rows [0, rows) of `a`, columns [0, k), rows <= kPanelRows.
template <class T>
void PackRowPanel(const GemmMatrix<T>& a, int64_t rows, int64_t k, float* panel);

// Packs columns [0, cols) of `b`, rows [0, k), into panels one behind the other, UnitsOf(k) * kPanelCols
// each.
template <class T>
void PackColumnPanels(const GemmMatrix<T>& b, int64_t k, int64_t cols, float* panels);

// Where a product of panels goes: added to `add`, then `bias` to every row, where these are not null, and
// written to f32 or, rounded once, to bf16.
struct PanelResult {
  const float* add = nullptr;  // rows add_ld apart
  int64_t add_ld = 0;
  const float* bias = nullptr;  // [cols]
  float* f32 = nullptr;         // one of the two is not null
  BFloat16* bf16 = nullptr;
  int64_t ld = 0;
  int64_t cols = 0;  // <= kPanelCols: what is beyond is not touched
};

// Memory that will be packed next, to be brought into L2 meanwhile, a line of 64 bytes after the other:
// otherwise reading operands from L3 or DRAM would take a tenth of a product of 256 rows.
class PanelAhead {
 public:
  PanelAhead() = default;
  // Columns [0, cols) and rows [0, k) of `b`, as PackColumnPanels reads them.
  template <class T>
  PanelAhead(const GemmMatrix<T>& b, int64_t k, int64_t cols)
      : row_(reinterpret_cast<const char*>(b.data)),
        stride_(b.ld * static_cast<int64_t>(sizeof(T))),
        rows_left_(b.transposed ? cols : k),
        row_bytes_((b.transposed ? k : cols) * static_cast<int64_t>(sizeof(T))) {}

  // The row panel of `units` units that comes next.
  void SetRows(const float* panel, int64_t rows, int64_t units) {
    panel_ = reinterpret_cast<const char*>(panel);
    panel_end_ = reinterpret_cast<const char*>(panel + rows * units);
  }

  // A line of the row panel, until there is none.
  bool has_panel() const { return panel_ < panel_end_; }
  const char* NextOfPanel() { return std::exchange(panel_, panel_ + 64); }

  bool done() const { return rows_left_ <= 0; }
  const char* Next() {
    const char* const line = row_ + at_;
    at_ += 64;
    if (at_ >= row_bytes_) {
      at_ = 0;
      row_ += stride_;
      --rows_left_;
    }
    return line;
  }

 private:
  const char* panel_ = nullptr;
  const char* panel_end_ = nullptr;
  const char* row_ = nullptr;
  int64_t stride_ = 0;
  int64_t rows_left_ = 0;
  int64_t row_bytes_ = 0;
  int64_t at_ = 0;
};

// The sum over `units` of row panel times column panel: one multiply-add a unit (bf16: a pair) after another,
// in the order of k, so that the bits depend on k and where it is cut alone.
template <class T>
void MultiplyPanels(int64_t rows, int64_t units, const float* row_panel, const float* column_panel,
                    const PanelResult& to, PanelAhead& ahead);

}  // namespace weft

#endif  // WEFT_OPS_CPU_PRODUCT_GEMM_PANELS_H_
