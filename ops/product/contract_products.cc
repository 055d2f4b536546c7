#include "ops/product/contract_products.h"

#include <algorithm>
#include <limits>

namespace weft {
namespace {

using Stride = int64_t ContractLoop::*;

// Outermost first by one tensor's stride, then by another's where the first repeats elements.
ContractLoops Sorted(ContractLoops loops, Stride by, Stride then) {
  std::stable_sort(loops.begin(), loops.end(), [&](const ContractLoop& a, const ContractLoop& b) {
    return a.*by != b.*by ? a.*by > b.*by : a.*then > b.*then;
  });
  return loops;
}

// One loop for neighbours that lie one behind the other in every tensor.
ContractLoops Merged(const ContractLoops& loops, Stride by, Stride then) {
  ContractLoops merged;
  for (const ContractLoop& loop : Sorted(loops, by, then)) {
    if (loop.extent == 1) continue;
    ContractLoop* const outer = merged.empty() ? nullptr : merged.end() - 1;
    const auto follows = [&](Stride stride) { return outer->*stride == loop.extent * (loop.*stride); };
    if (outer != nullptr && follows(&ContractLoop::x) && follows(&ContractLoop::w) &&
        follows(&ContractLoop::y)) {
      const int64_t extent = outer->extent * loop.extent;
      *outer = loop;
      outer->extent = extent;
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

ContractNest Merged(const ContractNest& nest) {
  return {.batch = Merged(nest.batch, &ContractLoop::y, &ContractLoop::x),
          .m = Merged(nest.m, &ContractLoop::y, &ContractLoop::x),
          .n = Merged(nest.n, &ContractLoop::y, &ContractLoop::w),
          .k = Merged(nest.k, &ContractLoop::x, &ContractLoop::w)};
}

// A matrix of these extents and strides, as BLAS takes it: one unit stride, and no overlapping rows.
bool FitMatrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, int64_t& ld) {
  if ((cols != 1 && col_stride != 1) || (rows != 1 && row_stride < cols)) return false;
  ld = rows == 1 ? std::max<int64_t>(cols, 1) : row_stride;
  return true;
}

bool FitOperand(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, int64_t& ld,
                bool& transposed) {
  transposed = false;
  if (FitMatrix(rows, cols, row_stride, col_stride, ld)) return true;
  transposed = true;
  return FitMatrix(cols, rows, col_stride, row_stride, ld);
}

// The product over one index of each class, as c = a b or c^T = b^T a^T.
bool FitProduct(const ContractLoop& m, const ContractLoop& n, const ContractLoop& k, ContractProducts& plan) {
  if (FitMatrix(m.extent, n.extent, m.y, n.y, plan.ldc)) {
    plan.swapped = false;
    plan.size = {m.extent, n.extent, k.extent};
    return FitOperand(m.extent, k.extent, m.x, k.x, plan.lda, plan.a_transposed) &&
           FitOperand(k.extent, n.extent, k.w, n.w, plan.ldb, plan.b_transposed);
  }
  plan.swapped = true;
  plan.size = {n.extent, m.extent, k.extent};
  return FitMatrix(n.extent, m.extent, n.y, m.y, plan.ldc) &&
         FitOperand(n.extent, k.extent, n.w, k.w, plan.lda, plan.a_transposed) &&
         FitOperand(k.extent, m.extent, k.x, m.x, plan.ldb, plan.b_transposed);
}

// Appends all but number `but`.
void AppendOthers(const ContractLoops& loops, int but, ContractLoops& to) {
  for (int i = 0; i < loops.size(); ++i) {
    if (i != but) to.push_back(loops[i]);
  }
}

// Calls `visit` with -1 (no index) and the number of each loop, innermost first.
template <class Visit>
void ForEachChoice(const ContractLoops& loops, const Visit& visit) {
  for (int i = loops.size() - 1; i >= -1; --i) visit(i);
}

// Gives every loop the stride of a row-major tensor of the loops in `order`; returns their letters.
DimLabels SetPacked(const ContractLoops& order, Stride stride, ContractNest& nest) {
  int64_t elements = 1;
  for (int i = order.size() - 1; i >= 0; --i) {
    for (ContractLoops* loops : {&nest.batch, &nest.m, &nest.n, &nest.k}) {
      for (ContractLoop& own : *loops) {
        if (own.letter == order[i].letter) own.*stride = elements;
      }
    }
    elements *= order[i].extent;
  }
  DimLabels labels;
  for (const ContractLoop& loop : order) labels.push_back(loop.letter);
  return labels;
}

}  // namespace

ContractNest ContractNest::Of(const ContractAttributes& labels, const Tensor& x, const Tensor& w,
                              const Tensor& y) {
  ContractNest nest;
  for (int dim = 0; dim < labels.y.size(); ++dim) {
    const int x_dim = labels.x.Find(labels.y[dim]);
    const int w_dim = labels.w.Find(labels.y[dim]);
    ContractLoops& loops = x_dim < 0 ? nest.n : w_dim < 0 ? nest.m : nest.batch;
    loops.push_back({.letter = labels.y[dim],
                     .extent = y.shape()[dim],
                     .x = x_dim < 0 ? 0 : x.strides()[x_dim],
                     .w = w_dim < 0 ? 0 : w.strides()[w_dim],
                     .y = y.strides()[dim]});
  }
  for (int dim = 0; dim < labels.x.size(); ++dim) {
    if (labels.y.Has(labels.x[dim])) continue;
    nest.k.push_back({.letter = labels.x[dim],
                      .extent = x.shape()[dim],
                      .x = x.strides()[dim],
                      .w = w.strides()[labels.w.Find(labels.x[dim])]});
  }
  return nest;
}

PackedNest PackNest(const ContractNest& nest, const ContractPacking& packing) {
  PackedNest packed;
  packed.packing = packing;
  packed.nest = nest;
  ContractNest& to = packed.nest;
  const ContractLoops batch = Sorted(nest.batch, &ContractLoop::y, &ContractLoop::x);
  // Each index of a packed tensor lies as in the tensor that it is shared with, so that the two merge.
  const auto lay = [&](const ContractLoops& outer, const ContractLoops& inner, Stride stride) {
    ContractLoops order = batch;
    order.Append(outer);
    order.Append(inner);
    return SetPacked(order, stride, to);
  };
  if (packing.y) {
    packed.y = lay(Sorted(to.m, &ContractLoop::x, &ContractLoop::y),
                   Sorted(to.n, &ContractLoop::w, &ContractLoop::y), &ContractLoop::y);
  }
  if (packing.x) {
    packed.x = lay(Sorted(to.m, &ContractLoop::y, &ContractLoop::x),
                   Sorted(to.k, &ContractLoop::w, &ContractLoop::x), &ContractLoop::x);
  }
  if (packing.w) {
    packed.w = lay(Sorted(to.k, &ContractLoop::x, &ContractLoop::w),
                   Sorted(to.n, &ContractLoop::y, &ContractLoop::w), &ContractLoop::w);
  }
  return packed;
}

std::optional<ContractProducts> ProductsOf(const ContractNest& nest, bool may_cut_sum) {
  const ContractNest merged = Merged(nest);
  if (!may_cut_sum && merged.k.size() > 1) return std::nullopt;
  const ContractLoop none;
  std::optional<ContractProducts> best;
  int64_t most = 0;
  ForEachChoice(merged.m, [&](int m) {
    ForEachChoice(merged.n, [&](int n) {
      ForEachChoice(merged.k, [&](int k) {
        if (!may_cut_sum && k < 0 && !merged.k.empty()) return;
        ContractProducts plan;
        if (!FitProduct(m < 0 ? none : merged.m[m], n < 0 ? none : merged.n[n], k < 0 ? none : merged.k[k],
                        plan)) {
          return;
        }
        const int64_t work = plan.size.m * plan.size.n * plan.size.k;
        if (work <= most) return;
        most = work;
        plan.outer = merged.batch;
        AppendOthers(merged.m, m, plan.outer);
        AppendOthers(merged.n, n, plan.outer);
        AppendOthers(merged.k, k, plan.sum);
        best = plan;
      });
    });
  });
  return best;
}

// Predicted time: the calls' overhead, their work, and the elements that they must read and write.
double ContractCosts::Of(const ContractProducts& plan) const {
  const double m = static_cast<double>(plan.size.m);
  const double n = static_cast<double>(plan.size.n);
  const double k = static_cast<double>(plan.size.k);
  int64_t batch = 1;
  for (const ContractLoop& loop : plan.outer) batch = has_batches ? std::max(batch, loop.extent) : 1;
  const double products = static_cast<double>(plan.num_outer() * plan.num_products());
  return products / static_cast<double>(batch) * call +
         products * (m * n * k + element * (m * k + k * n + m * n));
}

PackedPlan PlanWithPacking(const ContractNest& nest, bool may_cut_sum, const ContractCosts& costs) {
  const int64_t batch = nest.batch.num_iterations();
  const int64_t m = nest.m.num_iterations();
  const int64_t n = nest.n.num_iterations();
  const int64_t k = nest.k.num_iterations();
  PackedPlan best;
  double least = std::numeric_limits<double>::infinity();
  for (int bits = 0; bits < 8; ++bits) {
    const ContractPacking packing = {.x = (bits & 1) != 0, .w = (bits & 2) != 0, .y = (bits & 4) != 0};
    PackedNest packed = PackNest(nest, packing);
    const std::optional<ContractProducts> plan = ProductsOf(packed.nest, may_cut_sum);
    if (!plan.has_value()) continue;
    const int64_t elements = batch * (packing.x * m * k + packing.w * n * k + packing.y * m * n);
    const double cost = costs.Of(*plan) + costs.packed_element * static_cast<double>(elements) +
                        costs.packing * (packing.x + packing.w + packing.y);
    if (cost < least) {
      least = cost;
      best = {packed, *plan};
    }
    const bool is_whole = plan->num_products() == 1 && plan->num_outer() == batch &&
                          (!costs.has_batches || plan->outer.size() <= 1);
    if (bits == 0 && is_whole) break;
  }
  return best;
}

}  // namespace weft
