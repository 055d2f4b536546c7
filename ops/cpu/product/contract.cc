#include "ops/product/contract.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "ops/cpu/product/contract_plans.h"
#include "ops/cpu/product/gemm.h"
#include "ops/cpu/product/packed_gemm.h"
#include "ops/cpu/spans/float_spans.h"
#include "ops/cpu/spans/parallel_copy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op/call_kernel.h"
#include "ops/op/kernel.h"
#include "ops/product/contract_products.h"
#include "ops/reduce/reduce.h"
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
  Products(const ContractProducts& plan, const Tensor& x, const Tensor& w, const Tensor& y)
      : plan_(plan), tiling_(plan.size), x_(x.data<T>()), w_(w.data<T>()), y_(y.data<T>()) {}

  // Whether the products are packed ones.
  bool ArePacked() const {
    // Many small products are better shared out whole.
    // A packed product takes the whole pool and ends before the next begins, while the tiles of all of them
    // are one list. So only products that are long beside that wait are packed one by one.
    constexpr int64_t kWorkOfManyOuter = int64_t{1} << 26;
    const GemmSize& size = plan_.size;
    const auto [a, b] = OperandsAt({}, 0);
    return (plan_.num_outer() == 1 || size.m * size.n * size.k >= kWorkOfManyOuter) &&
           WantsPackedGemm<T>(size, a, b, plan_.ldc);
  }

  // `bias`, of one element a column, only if TakesBias.
  void Run(KernelContext& context, const float* bias) const {
    if constexpr (!std::is_same_v<T, double>) {
      if (ArePacked()) {
        for (int64_t outer = 0; outer < plan_.num_outer(); ++outer) RunPacked(context, outer, bias);
        return;
      }
    }
    RunTiles(context.pool, bias);
  }

  // A row of the product is a row of y's last dims, wherever their letters stand, and is in f32 until it has
  // the bias.
  bool TakesBias(int64_t num_elements) const {
    return plan_.num_outer() == 1 && !plan_.swapped && plan_.size.n == num_elements &&
           plan_.ldc == num_elements && (std::is_same_v<T, float> || ArePacked());
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

  void RunPacked(KernelContext& context, int64_t outer, const float* bias) const {
    const Offsets at = OffsetsAt(plan_.outer, outer);
    for (int64_t i = 0; i < plan_.num_products(); ++i) {
      const auto [a, b] = OperandsAt(at, i);
      const bool last = i + 1 == plan_.num_products();
      PackedGemm<T>(context, plan_.size, a, b, {.accumulate = i > 0, .bias = last ? bias : nullptr},
                    y_ + at.y, plan_.ldc);
    }
  }

  // The tiles of all outer indices are one list: many small products and one large one keep the
  // pool busy alike.
  void RunTiles(ThreadPool& pool, const float* bias) const {
    // Multiply-adds that are worth a task.
    constexpr int64_t kTaskWork = int64_t{1} << 18;
    const int64_t tile_work = std::max<int64_t>(1, tiling_.tile_work() * plan_.num_products());
    const int64_t grain = std::max<int64_t>(1, kTaskWork / tile_work);
    pool.ParallelFor(plan_.num_outer() * tiling_.num_tiles(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        RunTile(i / tiling_.num_tiles(), tiling_.TileAt(i % tiling_.num_tiles()), bias);
    });
  }

  void RunTile(int64_t outer, const GemmTiling::Tile& tile, const float* bias) const {
    const Offsets at = OffsetsAt(plan_.outer, outer);
    T* const c = y_ + at.y + tile.i * plan_.ldc + tile.j;
    // All products of a sum are this task's, in order: no partial sums to merge, a tile that stays in cache,
    // and the same bits for any number of threads.
    for (int64_t i = 0; i < plan_.num_products(); ++i) {
      const auto [a, b] = OperandsAt(at, i);
      if constexpr (std::is_same_v<T, BFloat16>) {
        GemmBF16(tile.size, a.Block(tile.i, 0), b.Block(0, tile.j), c, plan_.ldc);
      } else {
        Gemm<T>(tile.size, T(1), a.Block(tile.i, 0), b.Block(0, tile.j), /*accumulate=*/i > 0, c, plan_.ldc);
      }
    }
    if constexpr (std::is_same_v<T, float>) {
      if (bias == nullptr) return;
      // While the tile is in cache.
      const BinarySpan<float> add = FloatSpan(BinaryFunction::kAdd);
      for (int64_t i = 0; i < tile.size.m; ++i) {
        add(c + i * plan_.ldc, bias + tile.j, c + i * plan_.ldc, tile.size.n);
      }
    }
  }

  const ContractProducts& plan_;
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

// y[i, j] += bias[j], of rows as long as the bias: where no product could add it.
template <class T>
void AddToRows(ThreadPool& pool, const Tensor& bias, const Tensor& y) {
  constexpr int64_t kTaskElements = int64_t{1} << 15;
  const int64_t n = bias.num_elements();
  if (n == 0 || y.num_elements() == 0) return;
  const T* const from = bias.data<T>();
  T* const to = y.data<T>();
  pool.ParallelFor(y.num_elements() / n, std::max<int64_t>(1, kTaskElements / n),
                   [&](int64_t begin, int64_t end) {
                     for (T* row = to + begin * n; row < to + end * n; row += n) {
                       if constexpr (std::is_same_v<T, float>) {
                         FloatSpan(BinaryFunction::kAdd)(row, from, row, n);
                       } else if constexpr (std::is_same_v<T, double>) {
                         for (int64_t j = 0; j < n; ++j) row[j] += from[j];
                       } else {
                         for (int64_t j = 0; j < n; ++j) {
                           row[j] = T(static_cast<float>(row[j]) + static_cast<float>(from[j]));
                         }
                       }
                     }
                   });
}

class Contraction {
 public:
  Contraction(KernelContext& context, const ContractAttributes& labels)
      : context_(context), labels_(labels) {}

  // y is row-major; x and w have any strides. `bias`, if defined, lies along y's last dims.
  void Run(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) const {
    const bool is_bf16 = y.dtype() == DType::kBF16;
    // There is no product of f16 here, and one of bf16 only where HasFastBF16 says so. Through f32 each
    // operand is converted once, and y is rounded once.
    if (y.dtype() == DType::kF16 || (is_bf16 && !HasFastBF16())) {
      RunInF32(x, w, bias, y);
      return;
    }
    const std::shared_ptr<const ContractPlan> shared_plan = PlanContraction(labels_, x, w, y);
    const ContractPlan& plan = *shared_plan;
    if (plan.num_sums == 0) return;
    // An empty sum is 0, however a plan would cut it.
    if (plan.num_summands == 0) {
      FillTensor(y, 0);
      AddBias(bias, y);
      return;
    }
    const ContractPacking& packing = plan.packing;
    const Tensor px = packing.x ? Pack(x, labels_.x, plan.x) : x;
    const Tensor pw = packing.w ? Pack(w, labels_.w, plan.w) : w;
    const Tensor y_view = packing.y ? y.Permute(OrderOf(labels_.y, plan.y)) : y;
    // A product writes rows whose elements lie together. Where y's letters stand otherwise, it writes a copy
    // whose dims are in the product's order, and that is rearranged once.
    const Tensor py = packing.y ? Tensor::Empty(context_.allocator, y.dtype(), y_view.shape()) : y;
    const bool has_bias = RunPlan(plan.products, px, pw, packing.y ? Tensor() : bias, py);
    if (packing.y) ParallelCopy(context_.pool, py, y_view);
    if (!has_bias) AddBias(bias, y);
  }

 private:
  // Returns whether the products have added the bias.
  bool RunPlan(const ContractProducts& plan, const Tensor& x, const Tensor& w, const Tensor& bias,
               const Tensor& y) const {
    switch (y.dtype()) {
      case DType::kF64:
        return RunProducts<double>(plan, x, w, bias, y);
      case DType::kBF16:
        return RunProducts<BFloat16>(plan, x, w, bias, y);
      default:
        return RunProducts<float>(plan, x, w, bias, y);
    }
  }

  template <class T>
  bool RunProducts(const ContractProducts& plan, const Tensor& x, const Tensor& w, const Tensor& bias,
                   const Tensor& y) const {
    const Products<T> products(plan, x, w, y);
    const bool adds_bias = bias.defined() && products.TakesBias(bias.num_elements());
    const Tensor columns = adds_bias ? ToF32(bias) : Tensor();
    products.Run(context_, adds_bias ? columns.data<float>() : nullptr);
    return adds_bias;
  }

  void AddBias(const Tensor& bias, const Tensor& y) const {
    if (!bias.defined()) return;
    const Tensor rows = bias.IsContiguous() ? bias : ParallelClone(context_.pool, bias, context_.allocator);
    switch (y.dtype()) {
      case DType::kF64:
        return AddToRows<double>(context_.pool, rows, y);
      case DType::kBF16:
        return AddToRows<BFloat16>(context_.pool, rows, y);
      default:
        return AddToRows<float>(context_.pool, rows, y);
    }
  }

  void RunInF32(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) const {
    const Tensor y32 = Tensor::Empty(context_.allocator, DType::kF32, y.shape());
    Run(ToF32(x), ToF32(w), bias.defined() ? ToF32(bias) : bias, y32);
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
  Contraction(call.context, call.attributes())
      .Run(call.inputs[0], call.inputs[1], /*bias=*/Tensor(), call.outputs[0]);
}

void Linear(const KernelCall<ContractAttributes, NoScalars>& call) {
  Contraction(call.context, call.attributes())
      .Run(call.inputs[0], call.inputs[1], call.inputs[2], call.outputs[0]);
}

void LinearWeightGrad(const KernelCall<LinearWeightGradAttributes, NoScalars>& call) {
  const Tensor& dy = call.inputs[1];
  const Tensor& db = call.outputs[1];
  Contraction(call.context, call.attributes().labels)
      .Run(call.inputs[0], dy, /*bias=*/Tensor(), call.outputs[0]);
  CallKernel(kSumTo, call.context, {dy}, db, {.shape = db.shape()});
}

// Two passes on CPUs: oneDNN's sgemm takes no epilogue. gelu(h) is an output, since the gradient
// of w reads it.
void GeluLinear(const KernelCall<ContractAttributes, NoScalars>& call) {
  const Tensor& a = call.outputs[1];
  CallKernel(kGelu, call.context, {call.inputs[0]}, a);
  Contraction(call.context, call.attributes()).Run(a, call.inputs[1], call.inputs[2], call.outputs[0]);
}

// In place: dh is read and written element by element, so no array goes through the cache besides h and dh.
void GeluLinearInputGrad(const KernelCall<ContractAttributes, NoScalars>& call) {
  const Tensor& dh = call.outputs[0];
  Contraction(call.context, call.attributes()).Run(call.inputs[0], call.inputs[1], /*bias=*/Tensor(), dh);
  CallKernel(kGeluGrad, call.context, {call.inputs[2], dh}, dh);
}

const RegisterKernel kRegister[] = {
    {kContract, DeviceType::kCpu, Contract},
    {kLinear, DeviceType::kCpu, Linear},
    {kLinearWeightGrad, DeviceType::kCpu, LinearWeightGrad},
    {kGeluLinear, DeviceType::kCpu, GeluLinear},
    {kGeluLinearInputGrad, DeviceType::kCpu, GeluLinearInputGrad},
};

}  // namespace
}  // namespace weft
