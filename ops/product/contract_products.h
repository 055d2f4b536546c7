#ifndef WEFT_OPS_PRODUCT_CONTRACT_PRODUCTS_H_
#define WEFT_OPS_PRODUCT_CONTRACT_PRODUCTS_H_

#include <array>
#include <cstdint>
#include <optional>

#include "ops/product/contract.h"
#include "ops/product/gemm_size.h"

namespace weft {

// How a contraction of strided tensors becomes matrix products. Plain values: no data is touched here.

// One index: its extent, and the stride of each tensor along it (0 where the tensor lacks it).
struct ContractLoop {
  char letter = '\0';
  int64_t extent = 1;
  int64_t x = 0;
  int64_t w = 0;
  int64_t y = 0;

  bool operator==(const ContractLoop&) const = default;
};

// Loops, outermost first. At most 8, held in place: each class has at most as many as a tensor has dims, and
// the outer loops of a plan are dims of y.
class ContractLoops {
 public:
  void push_back(const ContractLoop& loop) { loops_[size_++] = loop; }
  void Append(const ContractLoops& loops) {
    for (const ContractLoop& loop : loops) push_back(loop);
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const ContractLoop& operator[](int i) const { return loops_[i]; }
  ContractLoop* begin() { return loops_.data(); }
  ContractLoop* end() { return loops_.data() + size_; }
  const ContractLoop* begin() const { return loops_.data(); }
  const ContractLoop* end() const { return loops_.data() + size_; }

  // Product of the extents.
  int64_t num_iterations() const {
    int64_t product = 1;
    for (const ContractLoop& loop : *this) product *= loop.extent;
    return product;
  }

  bool operator==(const ContractLoops&) const = default;

 private:
  std::array<ContractLoop, Shape::kMaxDims> loops_ = {};
  int size_ = 0;
};

// The indices of a contraction by who has them, as letters of einsum fall into four classes.
struct ContractNest {
  ContractLoops batch;  // x, w and y
  ContractLoops m;      // x and y
  ContractLoops n;      // w and y
  ContractLoops k;      // x and w: summed

  // Of local tensors: shapes and strides as they lie.
  static ContractNest Of(const ContractAttributes& labels, const Tensor& x, const Tensor& w, const Tensor& y);

  int64_t num_sums() const { return batch.num_iterations() * m.num_iterations() * n.num_iterations(); }
  int64_t num_summands() const { return k.num_iterations(); }
};

// Which tensors are copied to (y: from) a row-major one whose dims lie as the product wants them.
struct ContractPacking {
  bool x = false;
  bool w = false;
  bool y = false;

  bool operator==(const ContractPacking&) const = default;
};

// The nest with the strides that packed tensors will have, and the order of their dims.
struct PackedNest {
  ContractPacking packing;
  ContractNest nest;
  DimLabels x;
  DimLabels w;
  DimLabels y;
};
PackedNest PackNest(const ContractNest& nest, const ContractPacking& packing);

// Loops round one product.
struct ContractProducts {
  ContractLoops outer;  // one product or more each: independent
  ContractLoops sum;    // products that accumulate, in this order
  // The product: a is x and b is w, or, if swapped, a is w and b is x (so that y's rows are contiguous).
  GemmSize size;
  bool swapped = false;
  int64_t lda = 1;
  int64_t ldb = 1;
  int64_t ldc = 1;
  bool a_transposed = false;
  bool b_transposed = false;

  int64_t num_outer() const { return outer.num_iterations(); }
  int64_t num_products() const { return sum.num_iterations(); }
};

// The plan with the largest product that the strides allow, after merging the dims that lie one behind the
// other. Null if the sum would have to be cut and may not be.
std::optional<ContractProducts> ProductsOf(const ContractNest& nest, bool may_cut_sum);

struct PackedPlan {
  PackedNest packed;
  ContractProducts plan;
};

// What a device's products and copies cost, in multiply-adds. The default is a core's.
struct ContractCosts {
  double call = 50000;         // of a product
  double element = 16;         // that a product must read or write
  double packed_element = 50;  // a strided read and a write
  double packing = 0;          // of a copy, its elements aside
  bool has_batches = false;    // one outer loop of products is a single call

  double Of(const ContractProducts& plan) const;
};

// The plan of least predicted time, with or without packing. No packing where one product a batch element
// (with has_batches: one call for all of them) is possible as the tensors lie.
PackedPlan PlanWithPacking(const ContractNest& nest, bool may_cut_sum, const ContractCosts& costs = {});

}  // namespace weft

#endif  // WEFT_OPS_PRODUCT_CONTRACT_PRODUCTS_H_
