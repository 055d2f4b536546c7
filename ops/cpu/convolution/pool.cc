#include "ops/convolution/pool.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Rows or columns [begin, end) of the image, `step` apart, that a window holds, and its extent with padding.
struct Window {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
  int64_t padded = 0;

  int64_t size() const { return std::max<int64_t>(0, end - begin); }
};

// Window `index` along dim `i` (0 rows, 1 columns) of an image of `extent`.
Window WindowAt(const PoolAttributes& a, int i, int64_t index, int64_t extent) {
  const int64_t start = index * a.stride[i] - a.padding[i];
  const int64_t reach = a.dilation[i] * (a.kernel[i] - 1) + 1;
  Window window = {.begin = start, .end = std::min(start + reach, extent), .step = a.dilation[i]};
  window.padded = std::min(start + reach, extent + a.padding[i]) - start;
  if (start < 0) window.begin += (-start + a.dilation[i] - 1) / a.dilation[i] * a.dilation[i];
  return window;
}

// Images [h, w] and their windows [p, q], planes [n * c] of each.
struct Planes {
  Planes(const Shape& x, const Shape& y) : count(x[0] * x[1]), image{x[2], x[3]}, pixels{y[2], y[3]} {}

  int64_t count;
  std::array<int64_t, 2> image;
  std::array<int64_t, 2> pixels;

  int64_t image_size() const { return image[0] * image[1]; }
  int64_t num_pixels() const { return pixels[0] * pixels[1]; }

  // Runs body(plane) for each plane, on the pool.
  void ForEach(KernelContext& context, absl::FunctionRef<void(int64_t plane)> body) const {
    ParallelForRows(context, count, std::max(image_size(), num_pixels()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) body(plane);
    });
  }
  // Calls body(pixel, rows, columns) for each window of a plane.
  template <class Body>
  void ForEachWindow(const PoolAttributes& a, const Body& body) const {
    for (int64_t p = 0; p < pixels[0]; ++p) {
      const Window rows = WindowAt(a, 0, p, image[0]);
      for (int64_t q = 0; q < pixels[1]; ++q) {
        body(p * pixels[1] + q, rows, WindowAt(a, 1, q, image[1]));
      }
    }
  }
};

// What the mean of a window is divided by.
int64_t Divisor(const PoolAttributes& a, const Window& rows, const Window& columns) {
  return a.count_padding ? rows.padded * columns.padded : rows.size() * columns.size();
}

// Comparisons are strict, so the first of equal elements is taken, and a nan is never passed
// over: it wins once met, and later numbers are not greater. The place is saved, so that backward
// needs neither x nor the windows.
template <class T>
void MaxPoolOf(const PoolAttributes& a, const Tensor& x, const Tensor& y, const Tensor& index,
               KernelContext& context) {
  using C = ComputeType<T>;
  const Planes planes(x.shape(), y.shape());
  const T* const from = x.data<T>();
  planes.ForEach(context, [&](int64_t plane) {
    const T* const image = from + plane * planes.image_size();
    T* const maxima = y.data<T>() + plane * planes.num_pixels();
    int64_t* const places = index.data<int64_t>() + plane * planes.num_pixels();
    planes.ForEachWindow(a, [&](int64_t pixel, const Window& rows, const Window& columns) {
      int64_t place = rows.begin * planes.image[1] + columns.begin;
      C max = static_cast<C>(image[place]);
      for (int64_t i = rows.begin; i < rows.end; i += rows.step) {
        for (int64_t j = columns.begin; j < columns.end; j += columns.step) {
          const C value = static_cast<C>(image[i * planes.image[1] + j]);
          if (value > max || std::isnan(value)) {
            max = value;
            place = i * planes.image[1] + j;
          }
        }
      }
      maxima[pixel] = static_cast<T>(max);
      places[pixel] = place;
    });
  });
}

template <class T>
void MaxPoolGradOf(const Tensor& index, const Tensor& dy, const Tensor& dx, KernelContext& context) {
  using C = ComputeType<T>;
  const Planes planes(dx.shape(), dy.shape());
  planes.ForEach(context, [&](int64_t plane) {
    const int64_t* const places = index.data<int64_t>() + plane * planes.num_pixels();
    const T* const from = dy.data<T>() + plane * planes.num_pixels();
    // Sums of several windows are rounded once.
    std::vector<C> sums(planes.image_size(), C(0));
    for (int64_t pixel = 0; pixel < planes.num_pixels(); ++pixel) {
      WEFT_REQUIRE(places[pixel] >= 0 && places[pixel] < planes.image_size(), "max_pool_grad: index ",
                   places[pixel], " is outside images of ", planes.image_size(), " elements");
      sums[places[pixel]] += static_cast<C>(from[pixel]);
    }
    T* const to = dx.data<T>() + plane * planes.image_size();
    for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>(sums[i]);
  });
}

template <class T>
void AvgPoolOf(const PoolAttributes& a, const Tensor& x, const Tensor& y, KernelContext& context) {
  using C = ComputeType<T>;
  const Planes planes(x.shape(), y.shape());
  const T* const from = x.data<T>();
  planes.ForEach(context, [&](int64_t plane) {
    const T* const image = from + plane * planes.image_size();
    T* const means = y.data<T>() + plane * planes.num_pixels();
    planes.ForEachWindow(a, [&](int64_t pixel, const Window& rows, const Window& columns) {
      C sum = 0;
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        for (int64_t j = columns.begin; j < columns.end; ++j) {
          sum += static_cast<C>(image[i * planes.image[1] + j]);
        }
      }
      means[pixel] = static_cast<T>(sum / static_cast<C>(Divisor(a, rows, columns)));
    });
  });
}

// A plane is one task's: windows may overlap, and they add to it in order without atomics.
template <class T>
void AvgPoolGradOf(const PoolAttributes& a, const Tensor& dy, const Tensor& dx, KernelContext& context) {
  using C = ComputeType<T>;
  const Planes planes(dx.shape(), dy.shape());
  planes.ForEach(context, [&](int64_t plane) {
    const T* const from = dy.data<T>() + plane * planes.num_pixels();
    std::vector<C> sums(planes.image_size(), C(0));
    planes.ForEachWindow(a, [&](int64_t pixel, const Window& rows, const Window& columns) {
      const C share = static_cast<C>(from[pixel]) / static_cast<C>(Divisor(a, rows, columns));
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        for (int64_t j = columns.begin; j < columns.end; ++j) sums[i * planes.image[1] + j] += share;
      }
    });
    T* const to = dx.data<T>() + plane * planes.image_size();
    for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>(sums[i]);
  });
}

void MaxPool(const KernelCall<PoolAttributes, NoScalars>& call) {
  const Tensor x = Dense(call.inputs[0], call.context);
  VisitFloating(x.dtype(), "max_pool", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MaxPoolOf<T>(call.attributes(), x, call.outputs[0], call.outputs[1], call.context);
  });
}

void MaxPoolGrad(const KernelCall<PoolGradAttributes, NoScalars>& call) {
  const Tensor index = Dense(call.inputs[0], call.context);
  const Tensor dy = Dense(call.inputs[1], call.context);
  VisitFloating(dy.dtype(), "max_pool_grad", [&](auto tag) {
    MaxPoolGradOf<typename decltype(tag)::type>(index, dy, call.outputs[0], call.context);
  });
}

void AvgPool(const KernelCall<PoolAttributes, NoScalars>& call) {
  const Tensor x = Dense(call.inputs[0], call.context);
  VisitFloating(x.dtype(), "avg_pool", [&](auto tag) {
    AvgPoolOf<typename decltype(tag)::type>(call.attributes(), x, call.outputs[0], call.context);
  });
}

void AvgPoolGrad(const KernelCall<PoolGradAttributes, NoScalars>& call) {
  const Tensor dy = Dense(call.inputs[0], call.context);
  VisitFloating(dy.dtype(), "avg_pool_grad", [&](auto tag) {
    AvgPoolGradOf<typename decltype(tag)::type>(call.attributes().pool, dy, call.outputs[0], call.context);
  });
}

const RegisterKernel kRegister[] = {
    {kMaxPool, DeviceType::kCpu, MaxPool},
    {kMaxPoolGrad, DeviceType::kCpu, MaxPoolGrad},
    {kAvgPool, DeviceType::kCpu, AvgPool},
    {kAvgPoolGrad, DeviceType::kCpu, AvgPoolGrad},
};

}  // namespace
}  // namespace weft
