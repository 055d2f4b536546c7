#include "ops/cpu/product/packed_gemm.h"

#include <algorithm>
#include <type_traits>

#include "ops/cpu/product/gemm_panels.h"
#include "ops/cpu/spans/workspace.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

// Units of k that are summed in registers at once: a column panel of them is 64 KiB, a quarter of L2 for
// four.
constexpr int64_t kMaxDepth = 512;
// Packed rows of a that are kept, in units: 8 MiB, a part of L3.
constexpr int64_t kMaxPackedRows = int64_t{1} << 21;
// Rows that are packed at once, if k is short.
constexpr int64_t kMaxBlockRows = 2048;
// Column panels of a task, at most: packed, they stay in L2.
constexpr int64_t kMaxTaskPanels = 4;
// Tasks a thread, at least, where the product is large enough.
constexpr int64_t kTasksAThread = 4;
// Row panels that repay packing columns for them alone: 448 rows.
constexpr int64_t kEnoughRowPanels = 32;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// [0, extent) in `count` pieces, whose lengths are multiples of `multiple` and differ by no more.
struct Pieces {
  int64_t extent;
  int64_t count;
  int64_t multiple = 1;

  int64_t Begin(int64_t piece) const {
    const int64_t steps = CeilDiv(extent, multiple);
    return std::min(extent, (steps / count * piece + std::min(piece, steps % count)) * multiple);
  }
  int64_t Length(int64_t piece) const { return Begin(piece + 1) - Begin(piece); }
  int64_t MaxLength() const { return CeilDiv(CeilDiv(extent, multiple), count) * multiple; }
};

// The rows of a block are packed once for all threads, since the columns of each of them meet all rows.
// Columns are packed by the task that multiplies them, into memory of its own: they are in its L2 when the
// first row panel comes, and no thread waits for another one's packing.
template <class T>
class Product {
 public:
  Product(KernelContext& context, const GemmSize& size, const GemmMatrix<T>& a, const GemmMatrix<T>& b,
          const GemmSum& sum, T* c, int64_t ldc)
      : context_(context),
        size_(size),
        a_(a),
        b_(b),
        sum_(sum),
        c_(c),
        ldc_(ldc),
        depths_{size.k, CeilDiv(UnitsOf<T>(size.k), kMaxDepth), /*multiple=*/4 / sizeof(T)} {
    // k in pieces of nearly one length, so that none is too short to repay its reading and writing of c.
    // Several of them are packed at once where they fit: fewer barriers between packing and multiplying.
    const int64_t depth = UnitsOf<T>(depths_.MaxLength());
    const int64_t rows = CeilDiv(size.m, CeilDiv(size.m, kMaxBlockRows));
    depths_at_once_ = std::clamp<int64_t>(kMaxPackedRows / (depth * rows), 1, depths_.count);
    const int64_t most_rows =
        std::min(rows, std::max(kPanelRows, kMaxPackedRows / (depth * depths_at_once_)));
    blocks_ = {size.m, CeilDiv(size.m, most_rows)};
    panel_size_ = depth * kPanelRows + kPanelSlack;
    const int64_t panels = CeilDiv(blocks_.MaxLength(), kPanelRows);
    packed_ = Tensor::Empty(context.allocator, DType::kF32, {depths_at_once_ * panels * panel_size_});
    // c itself cannot hold sums of bf16 between depths: they would be rounded once per depth.
    if (std::is_same_v<T, BFloat16> && depths_.count > 1) {
      sums_ = Tensor::Empty(context.allocator, DType::kF32, {blocks_.MaxLength(), size.n});
    }
  }

  void Run() {
    for (int64_t block = 0; block < blocks_.count; ++block) {
      for (int64_t depth = 0; depth < depths_.count; depth += depths_at_once_) {
        RunBlock(block, depth, std::min(depths_at_once_, depths_.count - depth));
      }
    }
  }

 private:
  // Rows of a block, cut into panels of nearly one height.
  Pieces Panels(int64_t block) const {
    return {blocks_.Length(block), CeilDiv(blocks_.Length(block), kPanelRows)};
  }
  float* RowPanel(int64_t panel, int64_t depth, int64_t num_depths) const {
    return packed_.data<float>() + (panel * num_depths + depth) * panel_size_;
  }

  void RunBlock(int64_t block, int64_t first_depth, int64_t num_depths) {
    const Pieces panels = Panels(block);
    // Depth by depth of a panel, then the next one: neighbours in a task read the same rows further on.
    context_.pool.ParallelFor(panels.count * num_depths, /*grain=*/4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t panel = i / num_depths;
        const int64_t depth = i % num_depths;
        const GemmMatrix<T> rows =
            a_.Block(blocks_.Begin(block) + panels.Begin(panel), depths_.Begin(first_depth + depth));
        PackRowPanel(rows, panels.Length(panel), depths_.Length(first_depth + depth),
                     RowPanel(panel, depth, num_depths));
      }
    });
    const int64_t threads = context_.pool.num_threads();
    const auto [columns, groups] = CutOf(panels.count);
    const int64_t workspace = columns.MaxLength() * UnitsOf<T>(depths_.MaxLength());
    RunWithWorkspace<float>(context_, columns.count * groups.count, workspace, [&](int64_t task, float* own) {
      const int64_t column = task / groups.count;
      const int64_t group = task % groups.count;
      // This thread's next task, if the others are as fast.
      const int64_t next = std::min((task + threads) / groups.count, columns.count - 1);
      for (int64_t depth = 0; depth < num_depths; ++depth) {
        const bool last = depth + 1 == num_depths;
        PanelAhead ahead = AheadOf(columns, last ? next : column, first_depth + (last ? 0 : depth + 1));
        RunTask({block, first_depth, depth, num_depths, groups.Begin(group), groups.Begin(group + 1),
                 columns.Begin(column), columns.Begin(column + 1)},
                own, ahead);
      }
    });
  }

  // The tasks of a block: columns, by groups of row panels. As many as let a thread that is held up leave its
  // last ones to others, and as many for one thread as for the other.
  // This cut may follow the number of threads, unlike those of most kernels: it divides rows and columns of c
  // and never a sum, so bits do not depend on it.
  struct Cut {
    Pieces columns;
    Pieces groups;
  };
  Cut CutOf(int64_t row_panels) const {
    const int64_t threads = context_.pool.num_threads();
    const int64_t panels = CeilDiv(size_.n, kPanelCols);
    const int64_t wanted = threads == 1 ? 1 : kTasksAThread * threads;
    const int64_t most_groups = threads == 1 ? 1 : std::max<int64_t>(1, row_panels / kEnoughRowPanels);
    // Of few rows, fewer columns a task.
    int64_t columns =
        std::max(CeilDiv(panels, kMaxTaskPanels), std::min(panels, CeilDiv(wanted, most_groups)));
    if (columns < 2 * wanted) columns = std::min(panels, CeilDiv(columns, threads) * threads);
    // Of few columns, fewer rows, whatever packing columns twice costs.
    const int64_t groups =
        std::min({row_panels, CeilDiv(wanted, columns), std::max(most_groups, CeilDiv(threads, columns))});
    return {{size_.n, columns, kPanelCols}, {row_panels, groups}};
  }

  struct Task {
    int64_t block, first_depth, depth, num_depths;
    int64_t panel_begin, panel_end;    // of rows
    int64_t column_begin, column_end;  // elements
  };

  PanelAhead AheadOf(const Pieces& columns, int64_t column, int64_t depth) const {
    return {b_.Block(depths_.Begin(depth), columns.Begin(column)), depths_.Length(depth),
            columns.Length(column)};
  }

  void RunTask(const Task& task, float* columns, PanelAhead& ahead) const {
    const int64_t depth = task.first_depth + task.depth;
    const int64_t k = depths_.Length(depth);
    const int64_t units = UnitsOf<T>(k);
    PackColumnPanels(b_.Block(depths_.Begin(depth), task.column_begin), k,
                     task.column_end - task.column_begin, columns);
    const Pieces panels = Panels(task.block);
    for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
      const float* const rows = RowPanel(panel, task.depth, task.num_depths);
      if (panel + 1 < task.panel_end) {
        ahead.SetRows(RowPanel(panel + 1, task.depth, task.num_depths), panels.Length(panel + 1), units);
      }
      for (int64_t j = task.column_begin; j < task.column_end; j += kPanelCols) {
        MultiplyPanels<T>(panels.Length(panel), units, rows, columns + (j - task.column_begin) * units,
                          ResultAt(task.block, panels.Begin(panel), j, depth), ahead);
      }
    }
  }

  // `row` counts from the block's first.
  PanelResult ResultAt(int64_t block, int64_t row, int64_t column, int64_t depth) const {
    T* const c = c_ + (blocks_.Begin(block) + row) * ldc_ + column;
    PanelResult to = {.ld = ldc_, .cols = std::min(kPanelCols, size_.n - column)};
    if (sum_.bias != nullptr && depth + 1 == depths_.count) to.bias = sum_.bias + column;
    if constexpr (std::is_same_v<T, float>) {
      to.f32 = c;
      if (sum_.accumulate || depth > 0) to.add = c, to.add_ld = ldc_;
    } else {
      float* const sums = depths_.count > 1 ? sums_.template data<float>() + row * size_.n + column : nullptr;
      if (depth > 0) to.add = sums, to.add_ld = size_.n;
      if (depth + 1 < depths_.count) {
        to.f32 = sums;
        to.ld = size_.n;
      } else {
        to.bf16 = c;
      }
    }
    return to;
  }

  KernelContext& context_;
  GemmSize size_;
  GemmMatrix<T> a_;
  GemmMatrix<T> b_;
  GemmSum sum_;
  T* c_;
  int64_t ldc_;
  Pieces depths_;               // of k: what is summed in registers at once, a cut that follows from k alone
  Pieces blocks_ = {0, 1};      // of m: rows that are packed at once
  int64_t depths_at_once_ = 1;  // pieces of k that are
  int64_t panel_size_ = 0;
  Tensor packed_;
  Tensor sums_;  // bf16's, while k is not through
};

}  // namespace

template <class T>
bool WantsPackedGemm(const GemmSize& size, const GemmMatrix<T>& a, const GemmMatrix<T>& b, int64_t ldc) {
  if constexpr (std::is_same_v<T, double>) {
    return false;
  } else {
    // Packing moves (m + n) k elements for m n k multiply-adds, so each extent must be long
    // enough to repay it.
    constexpr int64_t kLeastExtent = 48;
    constexpr int64_t kLeastWork = int64_t{1} << 21;
    if (std::min({size.m, size.n, size.k}) < kLeastExtent || size.m * size.n * size.k < kLeastWork)
      return false;
    if (!HasPanelProducts<T>()) return false;
    if (sizeof(T) == 2 && HasTileBF16()) return false;
    // Rows that lie 4 KiB apart fall into one set of a first cache of 64 sets of 64 bytes, which a column of
    // them overflows; packed panels do not have that stride. An `a` that is not transposed is packed along
    // its rows, by whole lines that are used up at once.
    const auto crowds = [](int64_t ld) { return ld * static_cast<int64_t>(sizeof(T)) % 4096 == 0; };
    return sizeof(T) == 2 || b.transposed || (a.transposed && crowds(a.ld)) || crowds(b.ld) || crowds(ldc);
  }
}

template <class T>
void PackedGemm(KernelContext& context, const GemmSize& size, const GemmMatrix<T>& a, const GemmMatrix<T>& b,
                const GemmSum& sum, T* c, int64_t ldc) {
  Product<T>(context, size, a, b, sum, c, ldc).Run();
}

template bool WantsPackedGemm(const GemmSize&, const GemmMatrix<float>&, const GemmMatrix<float>&, int64_t);
template bool WantsPackedGemm(const GemmSize&, const GemmMatrix<double>&, const GemmMatrix<double>&, int64_t);
template bool WantsPackedGemm(const GemmSize&, const GemmMatrix<BFloat16>&, const GemmMatrix<BFloat16>&,
                              int64_t);
template void PackedGemm(KernelContext&, const GemmSize&, const GemmMatrix<float>&, const GemmMatrix<float>&,
                         const GemmSum&, float*, int64_t);
template void PackedGemm(KernelContext&, const GemmSize&, const GemmMatrix<BFloat16>&,
                         const GemmMatrix<BFloat16>&, const GemmSum&, BFloat16*, int64_t);

}  // namespace weft
