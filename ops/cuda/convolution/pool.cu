#include <cuda_runtime.h>

#include <algorithm>

#include "ops/convolution/pool.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_pack.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// Places [begin, end) of one dim of the image, `step` apart, that a window holds, and its extent with
// padding.
struct Window {
  int64_t begin;
  int64_t end;
  int64_t step;
  int64_t padded;

  __device__ bool Holds(int64_t place) const {
    return place >= begin && place < end && (place - begin) % step == 0;
  }
};

// The windows along one dim.
struct PoolDim {
  int64_t image = 0;    // extent
  int64_t windows = 0;  // how many
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;

  __device__ int64_t Reach() const { return dilation * (kernel - 1) + 1; }
  __device__ Window At(int64_t index) const {
    const int64_t start = index * stride - padding;
    Window window = {start, std::min(start + Reach(), image), dilation, 0};
    window.padded = std::min(start + Reach(), image + padding) - start;
    if (start < 0) window.begin += (-start + dilation - 1) / dilation * dilation;
    return window;
  }
  // Windows outside [FirstAt, LastAt] do not hold `place`.
  // Found by division, so that an element asks only the windows near it.
  __device__ int64_t FirstAt(int64_t place) const {
    const int64_t above = place + padding - Reach() + 1;
    return above <= 0 ? 0 : (above + stride - 1) / stride;
  }
  __device__ int64_t LastAt(int64_t place) const { return std::min((place + padding) / stride, windows - 1); }
};

// Planes of images [h, w] and their windows [p, q].
struct Planes {
  int64_t count = 0;
  PoolDim rows;
  PoolDim columns;
  bool count_padding = true;

  __host__ __device__ int64_t image_size() const { return rows.image * columns.image; }
  __host__ __device__ int64_t num_windows() const { return rows.windows * columns.windows; }
  // Window `i` of all planes, with the place of its plane's image.
  struct PlacedWindow {
    int64_t image;
    Window rows;
    Window columns;
  };
  __device__ PlacedWindow At(int64_t i) const {
    const int64_t plane = i / num_windows();
    const int64_t window = i - plane * num_windows();
    return {plane * image_size(), rows.At(window / columns.windows), columns.At(window % columns.windows)};
  }
  // Calls visit(p, q) for the windows that may hold an element of a plane, in their order.
  template <class Visit>
  __device__ void ForEachWindowAround(int64_t place, const Visit& visit) const {
    const int64_t row = place / columns.image;
    const int64_t column = place - row * columns.image;
    for (int64_t p = rows.FirstAt(row); p <= rows.LastAt(row); ++p) {
      for (int64_t q = columns.FirstAt(column); q <= columns.LastAt(column); ++q) visit(p, q);
    }
  }
  // What the mean of a window is divided by.
  __device__ int64_t Divisor(const Window& r, const Window& c) const {
    if (count_padding) return r.padded * c.padded;
    return std::max<int64_t>(0, r.end - r.begin) * std::max<int64_t>(0, c.end - c.begin);
  }
};

Planes MakePlanes(const PoolAttributes& a, const Shape& image, const Shape& windows) {
  const auto dim = [&](int i) {
    return PoolDim{image[i + 2], windows[i + 2], a.kernel[i], a.stride[i], a.padding[i], a.dilation[i]};
  };
  return {image[0] * image[1], dim(0), dim(1), a.count_padding};
}

// A thread per window. Strictly greater: of equal elements the first one keeps the place.
template <class T>
__global__ void MaxPoolKernel(const T* x, Planes planes, T* y, int64_t* index) {
  using C = WideOf<T>;
  ForEachOfGrid(planes.count * planes.num_windows(), [&](int64_t i) {
    const auto [image_begin, rows, columns] = planes.At(i);
    const T* const image = x + image_begin;
    int64_t place = rows.begin * planes.columns.image + columns.begin;
    C max = static_cast<C>(image[place]);
    for (int64_t r = rows.begin; r < rows.end; r += rows.step) {
      for (int64_t c = columns.begin; c < columns.end; c += columns.step) {
        const C value = static_cast<C>(image[r * planes.columns.image + c]);
        if (value > max || value != value) {
          max = value;
          place = r * planes.columns.image + c;
        }
      }
    }
    y[i] = static_cast<T>(max);
    index[i] = place;
  });
}

// In float for halves, in the window's order, and rounded once.
template <class T>
__global__ void AvgPoolKernel(const T* x, Planes planes, T* y) {
  using C = WideOf<T>;
  ForEachOfGrid(planes.count * planes.num_windows(), [&](int64_t i) {
    const auto [image_begin, rows, columns] = planes.At(i);
    const T* const image = x + image_begin;
    C sum = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        sum += static_cast<C>(image[r * planes.columns.image + c]);
      }
    }
    y[i] = static_cast<T>(sum / static_cast<C>(planes.Divisor(rows, columns)));
  });
}

// An element gathers from the windows that hold it, in their order.
// From the element's side: scattering from the windows would need atomics where they overlap, and bits would
// differ from run to run.
template <class T>
__global__ void AvgPoolGradKernel(const T* dy, Planes planes, T* dx) {
  using C = WideOf<T>;
  ForEachOfGrid(planes.count * planes.image_size(), [&](int64_t i) {
    const int64_t plane = i / planes.image_size();
    const T* const from = dy + plane * planes.num_windows();
    C sum = 0;
    planes.ForEachWindowAround(i - plane * planes.image_size(), [&](int64_t p, int64_t q) {
      const C share = static_cast<C>(from[p * planes.columns.windows + q]);
      sum += share / static_cast<C>(planes.Divisor(planes.rows.At(p), planes.columns.At(q)));
    });
    dx[i] = static_cast<T>(sum);
  });
}

constexpr int kPlaneThreads = 256;

// A block a plane. An element gathers from the windows that hold it, unless an index points out of its
// window: then from all of the plane.
// The flag is the plane's, which is why a plane is one block's: a barrier makes it known. Threads that find a
// stray write the same value, so it does not matter which is the last. Behind the last barrier the next plane
// may clear it.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    MaxPoolGradKernel(const int64_t* index, const T* dy, Planes planes, T* dx) {
  using C = WideOf<T>;
  __shared__ int strays;
  const int64_t width = planes.columns.image;
  for (int64_t plane = blockIdx.x; plane < planes.count; plane += gridDim.x) {
    const int64_t* const places = index + plane * planes.num_windows();
    const T* const from = dy + plane * planes.num_windows();
    T* const to = dx + plane * planes.image_size();
    if (threadIdx.x == 0) strays = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < planes.num_windows(); i += kPlaneThreads) {
      const Window rows = planes.rows.At(i / planes.columns.windows);
      const Window columns = planes.columns.At(i % planes.columns.windows);
      if (!rows.Holds(places[i] / width) || !columns.Holds(places[i] % width)) strays = 1;
    }
    __syncthreads();
    for (int64_t place = threadIdx.x; place < planes.image_size(); place += kPlaneThreads) {
      C sum = 0;
      const auto take = [&](int64_t window) {
        if (places[window] == place) sum += static_cast<C>(from[window]);
      };
      if (strays != 0) {
        for (int64_t window = 0; window < planes.num_windows(); ++window) take(window);
      } else {
        planes.ForEachWindowAround(place,
                                   [&](int64_t p, int64_t q) { take(p * planes.columns.windows + q); });
      }
      to[place] = static_cast<T>(sum);
    }
    __syncthreads();
  }
}

void MaxPool(const KernelCall<PoolAttributes, NoScalars>& call) {
  const Tensor x = PackedTensor(call.inputs[0], call.context);
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  VisitFloating(x.dtype(), "max_pool", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), MaxPoolKernel<T>, x.data<T>(),
               MakePlanes(call.attributes(), x.shape(), y.shape()), y.data<T>(),
               call.outputs[1].data<int64_t>());
  });
}

void MaxPoolGrad(const KernelCall<PoolGradAttributes, NoScalars>& call) {
  const Tensor index = PackedTensor(call.inputs[0], call.context);
  const Tensor dy = PackedTensor(call.inputs[1], call.context);
  const Tensor& dx = call.outputs[0];
  if (dx.num_elements() == 0) return;
  const Planes planes = MakePlanes(call.attributes().pool, dx.shape(), dy.shape());
  constexpr int64_t kMostBlocks = 1 << 30;
  VisitFloating(dy.dtype(), "max_pool_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(
        KernelStream(call),
        {.blocks = static_cast<unsigned>(std::min(planes.count, kMostBlocks)), .threads = kPlaneThreads},
        MaxPoolGradKernel<T>, index.data<int64_t>(), dy.data<T>(), planes, dx.data<T>());
  });
}

void AvgPool(const KernelCall<PoolAttributes, NoScalars>& call) {
  const Tensor x = PackedTensor(call.inputs[0], call.context);
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  VisitFloating(x.dtype(), "avg_pool", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), AvgPoolKernel<T>, x.data<T>(),
               MakePlanes(call.attributes(), x.shape(), y.shape()), y.data<T>());
  });
}

void AvgPoolGrad(const KernelCall<PoolGradAttributes, NoScalars>& call) {
  const Tensor dy = PackedTensor(call.inputs[0], call.context);
  const Tensor& dx = call.outputs[0];
  if (dx.num_elements() == 0) return;
  VisitFloating(dy.dtype(), "avg_pool_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(dx.num_elements()), AvgPoolGradKernel<T>, dy.data<T>(),
               MakePlanes(call.attributes().pool, dx.shape(), dy.shape()), dx.data<T>());
  });
}

const RegisterKernel kRegister[] = {
    {kMaxPool, DeviceType::kCuda, MaxPool},
    {kMaxPoolGrad, DeviceType::kCuda, MaxPoolGrad},
    {kAvgPool, DeviceType::kCuda, AvgPool},
    {kAvgPoolGrad, DeviceType::kCuda, AvgPoolGrad},
};

}  // namespace
}  // namespace weft
