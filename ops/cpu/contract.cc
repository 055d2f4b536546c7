#include "ops/contract.h"

#include <type_traits>
#include <utility>

#include "ops/cpu/contract_plan.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/packed_gemm.h"
#include "ops/cpu/parallel_copy.h"
#include "ops/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Where an outer or summed index stands in each tensor, in elements.
struct Offsets {
  int64_t x = 0;
  int64_t w = 0;
  int64_t y = 0;
};

Offsets OffsetsAt(const ContractLoops& loops, int64_t index) {
  Offsets offsets;
  for (int i = loops.size() - 1; i >= 0; --i) {
    const ContractLoop& loop = loops[i];
    const int64_t at = index % loop.extent;
    index /= loop.extent;
    offsets.x += at * loop.x;
    offsets.w += at * loop.w;
    offsets.y += at * loop.y;
  }
  return offsets;
}

// The products of one plan on one set of tensors.
template <class T>
class Products {
 public:
  Products(const ContractPlan& plan, const Tensor& x, const Tensor& w, const Tensor& y)
      : plan_(plan), tiling_(plan.size), x_(x.data<T>()), w_(w.data<T>()), y_(y.data<T>()) {}

  void Run(KernelContext& context) const {
    if constexpr (!std::is_same_v<T, double>) {
      // Many small products are better shared out whole.
      constexpr int64_t kWorkOfManyOuter = int64_t{1} << 26;
      const GemmSize& size = plan_.size;
      if (WantsPackedGemm<T>(size, plan_.b_transposed) &&
          (plan_.num_outer() == 1 || size.m * size.n * size.k >= kWorkOfManyOuter)) {
        for (int64_t outer = 0; outer < plan_.num_outer(); ++outer) RunPacked(context, outer);
        return;
      }
    }
    RunTiles(context.pool);
  }

 private:
  // Operands of product `i` of those that are summed.
  std::pair<GemmMatrix<T>, GemmMatrix<T>> OperandsAt(const Offsets& at, int64_t i) const {
    const Offsets sum = OffsetsAt(plan_.sum, i);
    const T* const x = x_ + at.x + sum.x;
    const T* const w = w_ + at.w + sum.w;
    return {{plan_.swapped ? w : x, plan_.lda, plan_.a_transposed},
            {plan_.swapped ? x : w, plan_.ldb, plan_.b_transposed}};
  }

  void RunPacked(KernelContext& context, int64_t outer) const {
    const Offsets at = OffsetsAt(plan_.outer, outer);
    for (int64_t i = 0; i < plan_.num_products(); ++i) {
      const auto [a, b] = OperandsAt(at, i);
      PackedGemm<T>(context, plan_.size, a, b, /*accumulate=*/i > 0, y_ + at.y, plan_.ldc);
    }
  }

  void RunTiles(ThreadPool& pool) const {
    // Multiply-adds that are worth a task.
    constexpr int64_t kTaskWork = int64_t{1} << 18;
    const int64_t tile_work = std::max<int64_t>(1, tiling_.tile_work() * plan_.num_products());
    const int64_t grain = std::max<int64_t>(1, kTaskWork / tile_work);
    pool.ParallelFor(plan_.num_outer() * tiling_.num_tiles(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        RunTile(i / tiling_.num_tiles(), tiling_.TileAt(i % tiling_.num_tiles()));
    });
  }

  void RunTile(int64_t outer, const GemmTiling::Tile& tile) const {
    const Offsets at = OffsetsAt(plan_.outer, outer);
    T* const c = y_ + at.y + tile.i * plan_.ldc + tile.j;
    for (int64_t i = 0; i < plan_.num_products(); ++i) {
      const auto [a, b] = OperandsAt(at, i);
      if constexpr (std::is_same_v<T, BFloat16>) {
        GemmBF16(tile.size, a.Block(tile.i, 0), b.Block(0, tile.j), c, plan_.ldc);
      } else {
        Gemm<T>(tile.size, T(1), a.Block(tile.i, 0), b.Block(0, tile.j), /*accumulate=*/i > 0, c, plan_.ldc);
      }
    }
  }

  const ContractPlan& plan_;
  GemmTiling tiling_;
  const T* x_;
  const T* w_;
  T* y_;
};

// Where dim i of `to` stands in `from`.
absl::InlinedVector<int, Shape::kMaxDims> OrderOf(const DimLabels& from, const DimLabels& to) {
  absl::InlinedVector<int, Shape::kMaxDims> order;
  for (char letter : to) order.push_back(from.Find(letter));
  return order;
}

class Contraction {
 public:
  explicit Contraction(const KernelCall<ContractAttributes, NoScalars>& call)
      : context_(call.context), labels_(call.attributes()) {}

  // y has as many elements as its shape says; x and w any strides.
  void Run(const Tensor& x, const Tensor& w, const Tensor& y) const {
    const bool is_bf16 = y.dtype() == DType::kBF16;
    if (y.dtype() == DType::kF16 || (is_bf16 && !HasFastBF16())) {
      RunInF32(x, w, y);
      return;
    }
    const ContractNest nest = ContractNest::Of(labels_, x, w, y);
    if (nest.num_sums() == 0) return;
    if (nest.num_summands() == 0) {
      FillTensor(y, 0);
      return;
    }
    // A sum of several bf16 products would be rounded each time.
    const bool may_cut_sum = !is_bf16;
    const auto [packed, plan] = PlanWithPacking(nest, may_cut_sum);
    const ContractPacking& packing = packed.packing;
    const Tensor px = packing.x ? Pack(x, labels_.x, packed.x) : x;
    const Tensor pw = packing.w ? Pack(w, labels_.w, packed.w) : w;
    const Tensor y_view = packing.y ? y.Permute(OrderOf(labels_.y, packed.y)) : y;
    const Tensor py = packing.y ? Tensor::Empty(context_.allocator, y.dtype(), y_view.shape()) : y;
    RunPlan(plan, px, pw, py);
    if (packing.y) ParallelCopy(context_.pool, py, y_view);
  }

 private:
  void RunPlan(const ContractPlan& plan, const Tensor& x, const Tensor& w, const Tensor& y) const {
    switch (y.dtype()) {
      case DType::kF64:
        Products<double>(plan, x, w, y).Run(context_);
        break;
      case DType::kBF16:
        Products<BFloat16>(plan, x, w, y).Run(context_);
        break;
      default:
        Products<float>(plan, x, w, y).Run(context_);
    }
  }

  void RunInF32(const Tensor& x, const Tensor& w, const Tensor& y) const {
    const Tensor y32 = Tensor::Empty(context_.allocator, DType::kF32, y.shape());
    Run(ToF32(x), ToF32(w), y32);
    ParallelCopy(context_.pool, y32, y);
  }

  Tensor ToF32(const Tensor& tensor) const {
    const Tensor to = Tensor::Empty(context_.allocator, DType::kF32, tensor.shape());
    ParallelCopy(context_.pool, tensor, to);
    return to;
  }

  Tensor Pack(const Tensor& tensor, const DimLabels& from, const DimLabels& to) const {
    return ParallelClone(context_.pool, tensor.Permute(OrderOf(from, to)), context_.allocator);
  }

  KernelContext& context_;
  const ContractAttributes& labels_;
};

void Contract(const KernelCall<ContractAttributes, NoScalars>& call) {
  Contraction(call).Run(call.inputs[0], call.inputs[1], call.outputs[0]);
}

const RegisterKernel kRegister(kContract, DeviceType::kCpu, Contract);

}  // namespace
}  // namespace weft
