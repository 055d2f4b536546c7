#include "ops/convolution/conv.h"

#include <algorithm>

#include "ops/cpu/convolution/image_columns.h"
#include "ops/cpu/product/gemm.h"
#include "ops/cpu/spans/parallel_copy.h"
#include "ops/cpu/spans/workspace.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/copy.h"

// Convolutions as matrix products with the windows of the images, which are copied a block of pixels at a
// time so that they stay in cache ([c * kh * kw, pixels]; 1 x 1 kernels need no copy).

namespace weft {
namespace {

// Elements of a block of windows: 2 MiB in f32. A block of few pixels costs the product more than one that
// leaves the cache.
// Blocks of pixels instead of all windows of an image (im2col as usual), whose copy is kh kw times the image
// and would leave the cache before the product reads it.
constexpr int64_t kBlockElements = int64_t{1} << 19;
constexpr int64_t kMinBlockPixels = 256;
// Tasks that keep any pool busy. Part of how sums are cut: bits depend on it, not on the pool.
constexpr int64_t kEnoughTasks = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// [0, extent) in pieces of `size`.
struct Tiles {
  Tiles(int64_t extent, int64_t tile) : extent(extent), size(std::max<int64_t>(1, tile)) {}
  int64_t count() const { return CeilDiv(extent, size); }
  PixelRange At(int64_t index) const { return {index * size, std::min(extent, (index + 1) * size)}; }

  int64_t extent;
  int64_t size;
};

// At least `min_size`, and so many pieces that `others` times them are enough tasks.
Tiles EnoughTiles(int64_t extent, int64_t others, int64_t min_size) {
  const int64_t pieces = CeilDiv(kEnoughTasks, std::max<int64_t>(1, others));
  return Tiles(extent, std::max(min_size, CeilDiv(extent, pieces)));
}

// One convolution on local tensors: extents, and row-major elements in the type that it computes in.
template <class T>
struct Problem {
  ImageWindows windows;
  int64_t images = 0;
  int64_t groups = 1;
  int64_t channels = 0;  // of a group
  int64_t outputs = 0;   // of a group

  int64_t summands() const { return channels * windows.kernel_size(); }
  Tiles PixelTiles() const {
    const int64_t fitting = std::max(kMinBlockPixels, kBlockElements / std::max<int64_t>(1, summands()));
    // Blocks of one size, and that of whole vectors.
    const int64_t count = std::max<int64_t>(1, CeilDiv(windows.num_pixels(), fitting));
    return Tiles(windows.num_pixels(), CeilDiv(CeilDiv(windows.num_pixels(), count), 16) * 16);
  }
  // Of one image and group; of one kernel of a group.
  const T* ImageAt(const T* x, int64_t image, int64_t group) const {
    return x + (image * groups + group) * channels * windows.image_size();
  }
  T* OutputAt(T* y, int64_t image, int64_t group, int64_t output) const {
    return y + ((image * groups + group) * outputs + output) * windows.num_pixels();
  }
  int64_t KernelAt(int64_t group, int64_t output) const { return (group * outputs + output) * summands(); }

  // The windows of `pixels` as a matrix [summands, pixels]: copied into `columns`, or the image itself.
  GemmMatrix<T> Columns(const T* x, int64_t image, int64_t group, const PixelRange& pixels,
                        T* columns) const {
    const T* const from = ImageAt(x, image, group);
    if (windows.IsIdentity()) return {from + pixels.begin, windows.image_size()};
    GatherColumns(windows, from, channels, pixels, columns);
    return {columns, pixels.size()};
  }
  int64_t ColumnElements() const {
    const Tiles tiles = PixelTiles();
    return windows.IsIdentity() ? 0 : summands() * std::min(tiles.size, tiles.extent);
  }
};

// The bias is written first and the product adds to it, so that no pass over y follows. Tasks divide images,
// groups, pixels and outputs and never a sum.
template <class T>
void Forward(const Problem<T>& c, const T* x, const T* w, const T* b, T* y, KernelContext& context) {
  const Tiles pixels = c.PixelTiles();
  const int64_t blocks = c.images * c.groups * pixels.count();
  const Tiles outputs = EnoughTiles(c.outputs, blocks, /*min_size=*/64);
  RunWithWorkspace<T>(context, blocks * outputs.count(), c.ColumnElements(), [&](int64_t task, T* workspace) {
    const PixelRange o = outputs.At(task % outputs.count());
    const int64_t block = task / outputs.count();
    const PixelRange p = pixels.At(block % pixels.count());
    const int64_t group = block / pixels.count() % c.groups;
    const int64_t image = block / pixels.count() / c.groups;
    T* const to = c.OutputAt(y, image, group, o.begin) + p.begin;
    const int64_t row = c.windows.num_pixels();
    for (int64_t i = 0; i < o.size(); ++i) {
      std::fill_n(to + i * row, p.size(), b[group * c.outputs + o.begin + i]);
    }
    // y [outputs, pixels] += w [outputs, summands] columns [summands, pixels]
    Gemm<T>({o.size(), p.size(), c.summands()}, T(1),
            {w + c.KernelAt(group, o.begin), std::max<int64_t>(1, c.summands())},
            c.Columns(x, image, group, p, workspace), /*accumulate=*/true, to, row);
  });
}

// Windows overlap, so their gradients are added up in the image: a task owns the channels that it adds to,
// and goes over the blocks of pixels in order.
template <class T>
void DataGrad(const Problem<T>& c, T* dy, const T* w, T* dx, KernelContext& context) {
  const Tiles pixels = c.PixelTiles();
  const Tiles channels = EnoughTiles(c.channels, c.images * c.groups, /*min_size=*/16);
  const int64_t tasks = c.images * c.groups * channels.count();
  const int64_t row = c.windows.num_pixels();
  RunWithWorkspace<T>(context, tasks, c.ColumnElements(), [&](int64_t task, T* workspace) {
    const PixelRange k = channels.At(task % channels.count());
    const int64_t group = task / channels.count() % c.groups;
    const int64_t image = task / channels.count() / c.groups;
    T* const to = dx + ((image * c.groups + group) * c.channels + k.begin) * c.windows.image_size();
    std::fill_n(to, k.size() * c.windows.image_size(), T(0));
    const int64_t rows = k.size() * c.windows.kernel_size();
    // w^T [channels of the task and kernel elements, outputs]
    const GemmMatrix<T> kernels = {w + c.KernelAt(group, 0) + k.begin * c.windows.kernel_size(),
                                   std::max<int64_t>(1, c.summands()), /*transposed=*/true};
    for (int64_t tile = 0; tile < pixels.count(); ++tile) {
      const PixelRange p = pixels.At(tile);
      const GemmMatrix<T> gradient = {c.OutputAt(dy, image, group, 0) + p.begin, row};
      const GemmSize size = {rows, p.size(), c.outputs};
      if (c.windows.IsIdentity()) {
        Gemm<T>(size, T(1), kernels, gradient, /*accumulate=*/false, to + p.begin, row);
      } else {
        Gemm<T>(size, T(1), kernels, gradient, /*accumulate=*/false, workspace, p.size());
        ScatterColumns(c.windows, workspace, k.size(), p, to);
      }
    }
  });
}

// dw sums over images and pixels: blocks of them each have a term, as many as fit 32 MiB; the terms are added
// in order.
template <class T>
void WeightGrad(const Problem<T>& c, const T* x, T* dy, T* dw, KernelContext& context) {
  constexpr int64_t kTermBytes = int64_t{32} << 20;
  const Tiles pixels = c.PixelTiles();
  const int64_t kernel_elements = c.groups * c.outputs * c.summands();
  const int64_t fitting = kTermBytes / std::max<int64_t>(1, kernel_elements * sizeof(T));
  const int64_t items = c.images * pixels.count();
  const Tiles blocks(items, CeilDiv(items, std::clamp<int64_t>(fitting, 1, 2 * kEnoughTasks)));
  if (blocks.count() == 0 || kernel_elements == 0) {
    std::fill_n(dw, kernel_elements, T(0));
    return;
  }
  const Tiles outputs = EnoughTiles(c.outputs, blocks.count() * c.groups, /*min_size=*/64);
  const Tensor terms = Tensor::Empty(context.allocator, kDTypeOf<T>, {blocks.count() - 1, kernel_elements});
  const int64_t tasks = blocks.count() * c.groups * outputs.count();
  RunWithWorkspace<T>(context, tasks, c.ColumnElements(), [&](int64_t task, T* workspace) {
    const PixelRange o = outputs.At(task % outputs.count());
    const int64_t group = task / outputs.count() % c.groups;
    const int64_t block = task / outputs.count() / c.groups;
    T* const term = block == 0 ? dw : terms.data<T>() + (block - 1) * kernel_elements;
    const PixelRange own = blocks.At(block);
    for (int64_t item = own.begin; item < own.end; ++item) {
      const int64_t image = item / pixels.count();
      const PixelRange p = pixels.At(item % pixels.count());
      GemmMatrix<T> columns = c.Columns(x, image, group, p, workspace);
      columns.transposed = true;
      // dw [outputs, summands] += dy [outputs, pixels] columns^T [pixels, summands]
      Gemm<T>({o.size(), c.summands(), p.size()}, T(1),
              {c.OutputAt(dy, image, group, o.begin) + p.begin, c.windows.num_pixels()}, columns,
              /*accumulate=*/item > own.begin, term + c.KernelAt(group, o.begin), c.summands());
    }
  });
  context.pool.ParallelFor(kernel_elements, /*grain=*/4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = 1; block < blocks.count(); ++block) {
      const T* const term = terms.data<T>() + (block - 1) * kernel_elements;
      for (int64_t i = begin; i < end; ++i) dw[i] += term[i];
    }
  });
}

DType ConvDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Row-major, in the type that the convolution computes in.
Tensor Operand(const Tensor& tensor, KernelContext& context) {
  const DType dtype = ConvDType(tensor.dtype());
  if (tensor.dtype() == dtype && tensor.IsContiguous()) return tensor;
  const Tensor copy = Tensor::Empty(context.allocator, dtype, tensor.shape());
  ParallelCopy(context.pool, tensor, copy);
  return copy;
}

// Of local x (or dx), w (or dw) and y (or dy).
template <class T>
Problem<T> ProblemOf(const ConvAttributes& a, const Shape& x, const Shape& w, const Shape& y) {
  Problem<T> problem;
  problem.windows = {.image = {x[2], x[3]},
                     .kernel = {w[2], w[3]},
                     .output = {y[2], y[3]},
                     .stride = a.stride,
                     .padding = a.padding,
                     .dilation = a.dilation};
  problem.images = x[0];
  // A piece of the channels of a depthwise convolution has fewer groups than the whole.
  const int64_t groups = a.groups == 1 || w[1] == 0 ? a.groups : x[1] / w[1];
  problem.groups = groups;
  problem.channels = w[1];
  problem.outputs = groups == 0 ? 0 : w[0] / groups;
  return problem;
}

// Calls run(result data, type tag) with the result in the type to compute in, then rounds it to the output.
template <class Run>
void InComputeType(KernelContext& context, const Tensor& output, const Run& run) {
  const DType dtype = ConvDType(output.dtype());
  const bool direct = output.dtype() == dtype;
  const Tensor to = direct ? output : Tensor::Empty(context.allocator, dtype, output.shape());
  if (dtype == DType::kF64) {
    run(to.data<double>());
  } else {
    run(to.data<float>());
  }
  if (!direct) ParallelCopy(context.pool, to, output);
}

void Conv(const KernelCall<ConvAttributes, NoScalars>& call) {
  const Tensor x = Operand(call.inputs[0], call.context);
  const Tensor w = Operand(call.inputs[1], call.context);
  const Tensor b = Operand(call.inputs[2], call.context);
  const Tensor& y = call.outputs[0];
  InComputeType(call.context, y, [&]<class T>(T* out) {
    Forward(ProblemOf<T>(call.attributes(), x.shape(), w.shape(), y.shape()), x.data<T>(), w.data<T>(),
            b.data<T>(), out, call.context);
  });
}

void ConvDataGrad(const KernelCall<ConvGradAttributes, NoScalars>& call) {
  const Tensor dy = Operand(call.inputs[0], call.context);
  const Tensor w = Operand(call.inputs[1], call.context);
  const Tensor& dx = call.outputs[0];
  InComputeType(call.context, dx, [&]<class T>(T* out) {
    DataGrad(ProblemOf<T>(call.attributes().conv, dx.shape(), w.shape(), dy.shape()), dy.data<T>(),
             w.data<T>(), out, call.context);
  });
}

void ConvWeightGrad(const KernelCall<ConvGradAttributes, NoScalars>& call) {
  const Tensor x = Operand(call.inputs[0], call.context);
  const Tensor dy = Operand(call.inputs[1], call.context);
  const Tensor& dw = call.outputs[0];
  InComputeType(call.context, dw, [&]<class T>(T* out) {
    WeightGrad(ProblemOf<T>(call.attributes().conv, x.shape(), dw.shape(), dy.shape()), x.data<T>(),
               dy.data<T>(), out, call.context);
  });
}

const RegisterKernel kRegister(kConv, DeviceType::kCpu, Conv);
const RegisterKernel kRegisterDataGrad(kConvDataGrad, DeviceType::kCpu, ConvDataGrad);
const RegisterKernel kRegisterWeightGrad(kConvWeightGrad, DeviceType::kCpu, ConvWeightGrad);

}  // namespace
}  // namespace weft
