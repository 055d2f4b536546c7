#include <cuda_runtime.h>

#include <type_traits>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/product/gemm.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op/call_kernel.h"
#include "ops/op/kernel.h"
#include "ops/product/contract.h"
#include "ops/product/contract_products.h"
#include "ops/reduce/reduce.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// Where the product could not add the bias: a pass more over y, and of halves a second rounding.
template <class T, class C>
__global__ void AddToRowsKernel(const T* bias, int64_t n, T* y, int64_t count) {
  ForEachOfGrid(
      count, [&](int64_t i) { y[i] = static_cast<T>(static_cast<C>(y[i]) + static_cast<C>(bias[i % n])); });
}

// Estimates by an H100's data sheet: a launch of some microseconds, its memory's and its cores' speed.
// In multiply-adds, and by dtype, since halves go to tensor cores: in the time of a launch they do ten times
// as many. An element that is packed counts for a strided read and a write.
ContractCosts CostsOf(DType dtype) {
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  return {.call = is_half ? 1e9 : 1e8,
          .element = is_half ? 200.0 : 30.0,
          .packed_element = is_half ? 600.0 : 90.0,
          .packing = is_half ? 1e9 : 1e8,
          .has_batches = true};
}

// Where dim i of `to` stands in `from`.
absl::InlinedVector<int, Shape::kMaxDims> OrderOf(const DimLabels& from, const DimLabels& to) {
  absl::InlinedVector<int, Shape::kMaxDims> order;
  for (char letter : to) order.push_back(from.Find(letter));
  return order;
}

// The product's operands, in elements from the beginning of each tensor.
struct Offsets {
  int64_t x = 0;
  int64_t w = 0;
  int64_t y = 0;
};

// Calls visit(offsets) for every iteration of `loops` but those of loop `but`, in order.
template <class Visit>
void ForEachIteration(const ContractLoops& loops, int but, const Visit& visit, const Offsets& at = {},
                      int depth = 0) {
  if (depth == loops.size()) return visit(at);
  const ContractLoop& loop = loops[depth];
  for (int64_t i = 0; i < (depth == but ? 1 : loop.extent); ++i) {
    ForEachIteration(loops, but, visit, {at.x + i * loop.x, at.w + i * loop.w, at.y + i * loop.y}, depth + 1);
  }
}

// What a product may do on the side, one of them: it costs no pass over memory of its own.
struct Epilogue {
  Tensor bias = {};        // along y's last dims: added
  Tensor gelu_input = {};  // of y's type: y is multiplied by the derivative of gelu there
  Tensor w_sums = {};  // along w's last dims, which are w's own: written, the sums of w over its other dims
};

class Contraction {
 public:
  Contraction(const KernelCallBase& call, const ContractAttributes& labels)
      : allocator_(call.context.allocator), labels_(labels) {}

  // y is row-major; x and w have any strides. Returns whether the products did the epilogue as well.
  bool Run(const Tensor& x, const Tensor& w, const Tensor& y, const Epilogue& epilogue = {}) const {
    const ContractNest nest = ContractNest::Of(labels_, x, w, y);
    if (nest.num_sums() == 0) return false;
    if (nest.num_summands() == 0) {
      FillTensor(y, 0);
      return false;
    }
    // A sum of several products of halves would be rounded each time.
    const bool may_cut_sum = y.dtype() == DType::kF32 || y.dtype() == DType::kF64;
    const auto& [packed, plan] = PlanWithPacking(nest, may_cut_sum, CostsOf(y.dtype()));
    const ContractPacking& packing = packed.packing;
    const Tensor px = packing.x ? Pack(x, labels_.x, packed.x) : x;
    const Tensor pw = packing.w ? Pack(w, labels_.w, packed.w) : w;
    const Tensor y_view = packing.y ? y.Permute(OrderOf(labels_.y, packed.y)) : y;
    const Tensor py = packing.y ? Tensor::Empty(allocator_, y.dtype(), y_view.shape()) : y;
    // An operand in another order than y would meet other elements in an epilogue, so a packed y has none.
    const bool did = RunProducts(plan, px, pw, py, packing.y ? Epilogue() : epilogue);
    if (packing.y) CopyTensor(py, y_view);
    return did;
  }

 private:
  // Returns whether they did the epilogue.
  bool RunProducts(const ContractProducts& plan, const Tensor& x, const Tensor& w, const Tensor& y,
                   const Epilogue& epilogue) const {
    int batch = -1;
    // The longest loop is the library's batch, one call for all of it; a call each is left for the others.
    for (int i = 0; i < plan.outer.size(); ++i) {
      if (batch < 0 || plan.outer[i].extent > plan.outer[batch].extent) batch = i;
    }
    const ContractLoop together = batch < 0 ? ContractLoop() : plan.outer[batch];
    const auto* const x_data = static_cast<const char*>(x.data());
    const auto* const w_data = static_cast<const char*>(w.data());
    const int64_t item = ItemSize(y.dtype());
    CudaGemm gemm;
    gemm.dtype = y.dtype();
    gemm.m = plan.size.m;
    gemm.n = plan.size.n;
    gemm.k = plan.size.k;
    gemm.batch = together.extent;
    gemm.a = {.ld = plan.lda, .transposed = plan.a_transposed, .batch_stride = together.x};
    gemm.b = {.ld = plan.ldb, .transposed = plan.b_transposed, .batch_stride = together.w};
    if (plan.swapped) std::swap(gemm.a.batch_stride, gemm.b.batch_stride);
    gemm.ldc = plan.ldc;
    gemm.c_batch_stride = together.y;
    gemm.allow_tf32 = AsCudaAllocator(*allocator_).rank_state().allow_tf32();
    bool does_epilogue = false;
    ForEachIteration(plan.outer, batch, [&](const Offsets& outer) {
      gemm.c = static_cast<char*>(y.data()) + outer.y * item;
      int64_t product = 0;
      ForEachIteration(plan.sum, /*but=*/-1, [&](const Offsets& sum) {
        const void* const from_x = x_data + (outer.x + sum.x) * item;
        const void* const from_w = w_data + (outer.w + sum.w) * item;
        gemm.a.data = plan.swapped ? from_w : from_x;
        gemm.b.data = plan.swapped ? from_x : from_w;
        // The first product of a sum overwrites, so y needs no zeros before.
        gemm.beta = product == 0 ? 0 : 1;
        // With the last product of a sum, and no other: a bias counts once.
        if (++product == plan.num_products()) does_epilogue = AddEpilogue(plan, epilogue, gemm);
        RunCudaGemm(allocator_, gemm);
        gemm.bias = nullptr;
      });
    });
    return does_epilogue;
  }

  // Gives it to the last product of a sum, if that can do it.
  bool AddEpilogue(const ContractProducts& plan, const Epilogue& epilogue, CudaGemm& gemm) const {
    if (epilogue.bias.defined()) {
      // A row of a product is a row of y's last dims, those of the bias: as many elements, one after the
      // other.
      const Tensor& bias = epilogue.bias;
      const bool fits = !plan.swapped && gemm.n == bias.num_elements() && bias.IsContiguous() &&
                        bias.dtype() != DType::kF64;
      if (fits) gemm.bias = bias.data();
      return fits;
    }
    // One product alone: gemm.h promises gelu's derivative and sums of columns without a batch and without
    // beta.
    if (plan.num_outer() != 1 || plan.num_products() != 1) return false;
    CudaGemm fused = gemm;
    if (epilogue.gelu_input.defined() && epilogue.gelu_input.IsContiguous()) {
      fused.gelu_input = epilogue.gelu_input.data();
    } else if (epilogue.w_sums.defined() && TakesSums(plan, epilogue.w_sums)) {
      fused.b_sums = epilogue.w_sums.data();
    } else {
      return false;
    }
    if (!HasCudaGemm(allocator_, fused)) return false;
    gemm = fused;
    return true;
  }

  // The columns of the product are the last dims of w, which are y's in the order that they have there.
  bool TakesSums(const ContractProducts& plan, const Tensor& sums) const {
    if (plan.swapped || plan.size.n != sums.num_elements()) return false;
    int dim = labels_.w.size() - sums.ndim();
    for (char letter : labels_.y) {
      if (dim < labels_.w.size() && letter == labels_.w[dim]) ++dim;
    }
    return dim == labels_.w.size();
  }

  Tensor Pack(const Tensor& tensor, const DimLabels& from, const DimLabels& to) const {
    return CloneTensor(tensor.Permute(OrderOf(from, to)), allocator_);
  }

  const std::shared_ptr<Allocator>& allocator_;
  const ContractAttributes& labels_;
};

void Contract(const KernelCall<ContractAttributes, NoScalars>& call) {
  Contraction(call, call.attributes()).Run(call.inputs[0], call.inputs[1], call.outputs[0]);
}

// y = x w + b.
void RunLinear(const KernelCall<ContractAttributes, NoScalars>& call, const Tensor& x) {
  const Tensor& b = call.inputs[2];
  const Tensor bias = b.IsContiguous() ? b : CloneTensor(b, call.context.allocator);
  const Tensor& y = call.outputs[0];
  const bool has_bias = Contraction(call, call.attributes()).Run(x, call.inputs[1], y, {.bias = bias});
  if (has_bias || y.num_elements() == 0) return;
  VisitFloating(y.dtype(), "linear", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), AddToRowsKernel<T, C>, bias.data<T>(),
               bias.num_elements(), y.data<T>(), y.num_elements());
  });
}

void Linear(const KernelCall<ContractAttributes, NoScalars>& call) { RunLinear(call, call.inputs[0]); }

// The bias's gradient is the sum of dy's rows. The product reads all of dy in any case: where the library
// adds it up on the way, a pass over dy is saved.
void LinearWeightGrad(const KernelCall<LinearWeightGradAttributes, NoScalars>& call) {
  const Tensor& dy = call.inputs[1];
  const Tensor& db = call.outputs[1];
  const bool has_sums =
      Contraction(call, call.attributes().labels).Run(call.inputs[0], dy, call.outputs[0], {.w_sums = db});
  if (!has_sums) CallKernel(kSumTo, call.context, {dy}, db, {.shape = db.shape()});
}

// gelu(x) is an output too, so it is written in any case: by a pass of its own, which the product then reads.
void GeluLinear(const KernelCall<ContractAttributes, NoScalars>& call) {
  CallKernel(kGelu, call.context, {call.inputs[0]}, call.outputs[1]);
  RunLinear(call, call.outputs[1]);
}

void GeluLinearInputGrad(const KernelCall<ContractAttributes, NoScalars>& call) {
  const Tensor& h = call.inputs[2];
  const Tensor& dh = call.outputs[0];
  const bool has_gelu =
      Contraction(call, call.attributes()).Run(call.inputs[0], call.inputs[1], dh, {.gelu_input = h});
  if (!has_gelu) CallKernel(kGeluGrad, call.context, {h, dh}, dh);
}

const RegisterKernel kRegister[] = {
    {kContract, DeviceType::kCuda, Contract},
    {kLinear, DeviceType::kCuda, Linear},
    {kLinearWeightGrad, DeviceType::kCuda, LinearWeightGrad},
    {kGeluLinear, DeviceType::kCuda, GeluLinear},
    {kGeluLinearInputGrad, DeviceType::kCuda, GeluLinearInputGrad},
};

}  // namespace
}  // namespace weft
