#include <cuda_runtime.h>

#include <algorithm>

#include "ops/convolution/conv.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/convolution/image_columns.h"
#include "ops/cuda/product/gemm.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/grid_loop.h"

// Convolutions as matrix products with the windows of the images, [c * kh * kw, pixels] an image, copied for
// some images at a time (1 x 1 kernels need no copy).

namespace weft {
namespace {

// columns[image, (c, i, j), pixel] = the element of channel c that kernel element (i, j) meets, 0 in padding.
// Pixels run innermost: neighbouring threads write neighbours, and with a stride of 1 read them too.
template <class T>
__global__ void GatherColumnsKernel(CudaImageWindows w, const T* x, T* columns, int64_t count) {
  ForEachOfGrid(count, [&](int64_t index) {
    const int64_t pixel = index % w.num_pixels();
    int64_t rest = index / w.num_pixels();
    const int64_t j = rest % w.kernel[1];
    rest /= w.kernel[1];
    const int64_t i = rest % w.kernel[0];
    const int64_t channel = rest / w.kernel[0];  // of all images
    const int64_t row = pixel / w.output[1] * w.stride[0] + i * w.dilation[0] - w.padding[0];
    const int64_t column = pixel % w.output[1] * w.stride[1] + j * w.dilation[1] - w.padding[1];
    const bool inside = row >= 0 && row < w.image[0] && column >= 0 && column < w.image[1];
    columns[index] = inside ? x[channel * w.image_size() + row * w.image[1] + column] : T(0);
  });
}

// The transpose, from the image's side: every element adds up the columns that it went to, in one order.
// A gather: scattering columns to the image would need atomics where windows overlap.
template <class T>
__global__ void AddColumnsKernel(CudaImageWindows w, const T* columns, T* x, int64_t count) {
  ForEachOfGrid(count, [&](int64_t index) {
    const int64_t column = index % w.image[1];
    const int64_t row = index / w.image[1] % w.image[0];
    const int64_t channel = index / w.image_size();
    const T* const from = columns + channel * w.kernel_size() * w.num_pixels();
    T sum = 0;
    for (int64_t i = 0; i < w.kernel[0]; ++i) {
      const int64_t down = row + w.padding[0] - i * w.dilation[0];
      if (down < 0 || down % w.stride[0] != 0 || down / w.stride[0] >= w.output[0]) continue;
      for (int64_t j = 0; j < w.kernel[1]; ++j) {
        const int64_t right = column + w.padding[1] - j * w.dilation[1];
        if (right < 0 || right % w.stride[1] != 0 || right / w.stride[1] >= w.output[1]) continue;
        const int64_t pixel = down / w.stride[0] * w.output[1] + right / w.stride[1];
        sum += from[(i * w.kernel[1] + j) * w.num_pixels() + pixel];
      }
    }
    x[index] = sum;
  });
}

// y[image, o, pixel] = b[o].
// A bias of the library's products belongs to their columns, which are pixels here; so the bias goes into y
// first, and the product is added to it (beta = 1).
template <class T>
__global__ void FillBiasKernel(const T* b, int64_t outputs, int64_t pixels, T* y, int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) { y[i] = b[i / pixels % outputs]; });
}

// One convolution on local tensors, row-major, in the type T that it computes in.
template <class T>
class Convolution {
 public:
  // Of local x (or dx), w (or dw) and y (or dy).
  Convolution(const KernelCallBase& call, const ConvAttributes& a, const Shape& x, const Shape& w,
              const Shape& y)
      : allocator_(call.context.allocator), stream_(KernelStream(call)), images_(x[0]), channels_(w[1]) {
    windows_.channels = x[1];
    for (int i = 0; i < 2; ++i) {
      windows_.image[i] = x[2 + i];
      windows_.kernel[i] = w[2 + i];
      windows_.output[i] = y[2 + i];
      windows_.stride[i] = a.stride[i];
      windows_.padding[i] = a.padding[i];
      windows_.dilation[i] = a.dilation[i];
    }
    // A piece of the channels of a depthwise convolution has fewer groups than the whole.
    groups_ = a.groups == 1 || w[1] == 0 ? a.groups : x[1] / w[1];
    outputs_ = groups_ == 0 ? 0 : w[0] / groups_;
  }

  void Forward(const T* x, const T* w, const T* b, T* y) const {
    const int64_t count = images_ * ImageOutputs();
    if (count == 0) return;
    LaunchCuda(stream_, GridOver(count), FillBiasKernel<T>, b, groups_ * outputs_, windows_.num_pixels(), y,
               count);
    if (summands() == 0) return;
    ForEachChunk([&](int64_t first, int64_t images, T* scratch) {
      // y [outputs, pixels] += w [outputs, summands] columns [summands, pixels]
      RunProducts({outputs_, windows_.num_pixels(), summands()}, images, WeightsOf(w),
                  ColumnsOf(Columns(x, first, images, scratch)), OutputsOf(y + first * ImageOutputs()),
                  /*beta=*/1);
    });
  }

  void DataGrad(const T* dy, const T* w, T* dx) const {
    const int64_t image_elements = windows_.channels * windows_.image_size();
    if (images_ * image_elements == 0) return;
    if (outputs_ == 0 || windows_.num_pixels() == 0) {
      CheckCuda(
          cudaMemsetAsync(dx, 0, static_cast<size_t>(images_ * image_elements) * sizeof(T), stream_.handle()),
          "cudaMemsetAsync");
      return;
    }
    ForEachChunk([&](int64_t first, int64_t images, T* scratch) {
      T* const columns = windows_.IsIdentity() ? dx + first * image_elements : scratch;
      // columns [summands, pixels] = w^T [summands, outputs] dy [outputs, pixels]
      RunProducts({summands(), windows_.num_pixels(), outputs_}, images, WeightsOf(w).Transposed(),
                  OutputsOf(dy + first * ImageOutputs()), ColumnsOf(columns), /*beta=*/0);
      // The columns were dx itself.
      if (windows_.IsIdentity()) return;
      const int64_t count = images * image_elements;
      LaunchCuda(stream_, GridOver(count), AddColumnsKernel<T>, windows_, columns,
                 dx + first * image_elements, count);
    });
  }

  // Images add up one after the other.
  // A batch of images would give each a result of its own, to be added up afterwards: as much memory as images
  // times dw.
  void WeightGrad(const T* x, const T* dy, T* dw) const {
    const int64_t elements = groups_ * outputs_ * summands();
    if (elements == 0) return;
    if (images_ == 0 || windows_.num_pixels() == 0) {
      CheckCuda(cudaMemsetAsync(dw, 0, static_cast<size_t>(elements) * sizeof(T), stream_.handle()),
                "cudaMemsetAsync");
      return;
    }
    ForEachChunk([&](int64_t first, int64_t images, T* scratch) {
      const T* const columns = Columns(x, first, images, scratch);
      for (int64_t image = first; image < first + images; ++image) {
        // dw [outputs, summands] += dy [outputs, pixels] columns^T [pixels, summands]
        RunProducts({outputs_, summands(), windows_.num_pixels()}, /*images=*/1,
                    OutputsOf(dy + image * ImageOutputs()),
                    ColumnsOf(columns + (image - first) * ImageColumns()).Transposed(), WeightsOf(dw),
                    /*beta=*/image == 0 ? 0 : 1);
      }
    });
  }

 private:
  // A matrix for each image and group.
  template <class E>
  struct Matrices {
    E* data = nullptr;
    int64_t ld = 1;
    int64_t image_stride = 0;
    int64_t group_stride = 0;
    bool transposed = false;

    Matrices Transposed() const {
      Matrices result = *this;
      result.transposed = true;
      return result;
    }
  };
  struct ProductExtents {
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
  };

  // Of a group's product.
  int64_t summands() const { return channels_ * windows_.kernel_size(); }
  int64_t ImageColumns() const { return groups_ * summands() * windows_.num_pixels(); }
  int64_t ImageOutputs() const { return groups_ * outputs_ * windows_.num_pixels(); }

  // Calls body(first image, number of images, memory for their columns).
  template <class Body>
  void ForEachChunk(const Body& body) const {
    // Columns are kernel_size times their image. The bound keeps the workspace of a large batch from growing
    // with it, and one image is always taken whole.
    constexpr int64_t kMostBytes = int64_t{256} << 20;
    const int64_t bytes = std::max<int64_t>(1, ImageColumns() * static_cast<int64_t>(sizeof(T)));
    const int64_t chunk = std::clamp<int64_t>(kMostBytes / bytes, 1, std::max<int64_t>(1, images_));
    const int64_t elements = windows_.IsIdentity() ? 0 : std::min(chunk, images_) * ImageColumns();
    const Tensor scratch = Tensor::Empty(allocator_, kDTypeOf<T>, Shape{elements});
    for (int64_t first = 0; first < images_; first += chunk) {
      body(first, std::min(chunk, images_ - first), scratch.data<T>());
    }
  }

  const T* Columns(const T* x, int64_t first, int64_t images, T* scratch) const {
    const T* const from = x + first * windows_.channels * windows_.image_size();
    if (windows_.IsIdentity()) return from;
    const int64_t count = images * ImageColumns();
    LaunchCuda(stream_, GridOver(count), GatherColumnsKernel<T>, windows_, from, scratch, count);
    return scratch;
  }

  // E is T or const T.
  template <class E>
  Matrices<E> WeightsOf(E* w) const {
    return {w, summands(), /*image_stride=*/0, outputs_ * summands()};
  }
  template <class E>
  Matrices<E> ColumnsOf(E* columns) const {
    const int64_t pixels = windows_.num_pixels();
    return {columns, pixels, ImageColumns(), summands() * pixels};
  }
  template <class E>
  Matrices<E> OutputsOf(E* y) const {
    const int64_t pixels = windows_.num_pixels();
    return {y, pixels, ImageOutputs(), outputs_ * pixels};
  }

  // c = a b + beta c of each image and group: the more of the two as one batch, a launch for each of the other. A
  // depthwise convolution has hundreds of groups.
  void RunProducts(const ProductExtents& extents, int64_t images, const Matrices<const T>& a,
                   const Matrices<const T>& b, const Matrices<T>& c, double beta) const {
    const bool by_image = images >= groups_;
    const auto batch_stride = [&](const auto& of) { return by_image ? of.image_stride : of.group_stride; };
    CudaGemm gemm;
    gemm.dtype = kDTypeOf<T>;
    gemm.m = extents.m;
    gemm.n = extents.n;
    gemm.k = extents.k;
    gemm.batch = by_image ? images : groups_;
    gemm.ldc = c.ld;
    gemm.c_batch_stride = batch_stride(c);
    gemm.beta = beta;
    gemm.allow_tf32 = AsCudaAllocator(*allocator_).rank_state().allow_tf32();
    for (int64_t i = 0; i < (by_image ? groups_ : images); ++i) {
      const auto first = [&](const auto& of) {
        return of.data + i * (by_image ? of.group_stride : of.image_stride);
      };
      const auto operand = [&](const Matrices<const T>& of) -> CudaGemmOperand {
        return {first(of), of.ld, of.transposed, batch_stride(of)};
      };
      gemm.a = operand(a);
      gemm.b = operand(b);
      gemm.c = first(c);
      RunCudaGemm(allocator_, gemm);
    }
  }

  const std::shared_ptr<Allocator>& allocator_;
  CudaStreamRef stream_;
  CudaImageWindows windows_;
  int64_t images_;
  int64_t groups_ = 1;
  int64_t channels_;  // of a group
  int64_t outputs_ = 0;
};

// Halves are computed in f32: the gradient of w adds a product per image, and each sum would be rounded.
DType ConvDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Row-major, in the type that the convolution computes in.
Tensor Operand(const Tensor& tensor, const KernelContext& context) {
  const DType dtype = ConvDType(tensor.dtype());
  if (tensor.dtype() == dtype && tensor.IsContiguous()) return tensor;
  return CastTensor(tensor, dtype, context.allocator);
}

// Calls run(result data) with the result in the type to compute in, then rounds it to the output.
template <class Run>
void InComputeType(const KernelContext& context, const Tensor& output, const Run& run) {
  const DType dtype = ConvDType(output.dtype());
  const bool direct = output.dtype() == dtype;
  const Tensor to = direct ? output : Tensor::Empty(context.allocator, dtype, output.shape());
  if (dtype == DType::kF64) {
    run(to.data<double>());
  } else {
    run(to.data<float>());
  }
  if (!direct) CopyTensor(to, output);
}

void Conv(const KernelCall<ConvAttributes, NoScalars>& call) {
  const Tensor x = Operand(call.inputs[0], call.context);
  const Tensor w = Operand(call.inputs[1], call.context);
  const Tensor b = Operand(call.inputs[2], call.context);
  const Tensor& y = call.outputs[0];
  InComputeType(call.context, y, [&]<class T>(T* out) {
    Convolution<T>(call, call.attributes(), x.shape(), w.shape(), y.shape())
        .Forward(x.data<T>(), w.data<T>(), b.data<T>(), out);
  });
}

void ConvDataGrad(const KernelCall<ConvGradAttributes, NoScalars>& call) {
  const Tensor dy = Operand(call.inputs[0], call.context);
  const Tensor w = Operand(call.inputs[1], call.context);
  const Tensor& dx = call.outputs[0];
  InComputeType(call.context, dx, [&]<class T>(T* out) {
    Convolution<T>(call, call.attributes().conv, dx.shape(), w.shape(), dy.shape())
        .DataGrad(dy.data<T>(), w.data<T>(), out);
  });
}

void ConvWeightGrad(const KernelCall<ConvGradAttributes, NoScalars>& call) {
  const Tensor x = Operand(call.inputs[0], call.context);
  const Tensor dy = Operand(call.inputs[1], call.context);
  const Tensor& dw = call.outputs[0];
  InComputeType(call.context, dw, [&]<class T>(T* out) {
    Convolution<T>(call, call.attributes().conv, x.shape(), dw.shape(), dy.shape())
        .WeightGrad(x.data<T>(), dy.data<T>(), out);
  });
}

const RegisterKernel kRegister(kConv, DeviceType::kCuda, Conv);
const RegisterKernel kRegisterDataGrad(kConvDataGrad, DeviceType::kCuda, ConvDataGrad);
const RegisterKernel kRegisterWeightGrad(kConvWeightGrad, DeviceType::kCuda, ConvWeightGrad);

}  // namespace
}  // namespace weft
