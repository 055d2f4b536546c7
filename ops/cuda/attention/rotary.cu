#include <cuda_runtime.h>

#include <cmath>
#include <type_traits>

#include "ops/attention/rotary.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

template <class T>
using ComputeOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Extents of x [b, s, heads, e] with e = 2 pairs, and how pairs lie.
// Rotary embedding (Su et al., "RoFormer", arXiv 2104.09864): pair i of a head turns by position * base^(-i /
// pairs). The backward is the same kernel with the sign of the angle turned.
struct RotaryExtents {
  int64_t seq = 0, heads = 0, pairs = 0;
  int64_t b_stride = 0, s_stride = 0, h_stride = 0;  // of x; y is row-major
  int64_t gap = 0;                                   // between the two of a pair
  int64_t step = 0;                                  // between pairs
};

// turns[(row, pair)] = cos and sin of position * frequency, in f64: few, since heads and batch share them.
// An angle of 10^5 has steps of 0.008 in f32, which would turn distant positions by the wrong amount.
template <class C>
__global__ void RotaryTurnsKernel(double base, double sign, int64_t offset, int64_t pairs, int64_t count,
                                  C* cosines, C* sines) {
  ForEachOfGrid(count, [&](int64_t i) {
    const double pair = static_cast<double>(i % pairs);
    const double frequency = sign * pow(base, -pair / static_cast<double>(pairs));
    const double angle = static_cast<double>(offset + i / pairs) * frequency;
    cosines[i] = static_cast<C>(cos(angle));
    sines[i] = static_cast<C>(sin(angle));
  });
}

// A thread turns kPairs neighbouring pairs of a head: `pairs` and all strides are multiples of it.
template <class T, int kPairs>
__global__ void RotaryKernel(RotaryExtents n, const T* x, T* y, const ComputeOf<T>* cosines,
                             const ComputeOf<T>* sines, int64_t count) {
  using C = ComputeOf<T>;
  struct alignas(sizeof(T) * kPairs) Pack {
    T at[kPairs];
  };
  ForEachOfGrid(count, [&](int64_t index) {
    const int64_t groups = n.pairs / kPairs;
    const int64_t pair = index % groups * kPairs;
    const int64_t head = index / groups % n.heads;
    const int64_t row = index / groups / n.heads % n.seq;
    const int64_t b = index / groups / n.heads / n.seq;
    const T* const from = x + b * n.b_stride + row * n.s_stride + head * n.h_stride + pair * n.step;
    T* const to = y + ((b * n.seq + row) * n.heads + head) * 2 * n.pairs + pair * n.step;
    const C* const cosine = cosines + row * n.pairs + pair;
    const C* const sine = sines + row * n.pairs + pair;
    // Halves: [kPairs] firsts, and [kPairs] seconds further on. Neighbours: the two packs interleave.
    // The form is the whole grid's, so the choice costs no divergence.
    const bool interleaved = n.step == 2;
    const int64_t second = interleaved ? kPairs : n.gap;
    const Pack a = *reinterpret_cast<const Pack*>(from);
    const Pack b2 = *reinterpret_cast<const Pack*>(from + second);
    Pack out_a;
    Pack out_b;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      // Element k of the two packs together.
      const auto get = [&](int k) { return static_cast<C>(k < kPairs ? a.at[k] : b2.at[k - kPairs]); };
      const auto set = [&](int k, C value) {
        (k < kPairs ? out_a.at[k] : out_b.at[k - kPairs]) = static_cast<T>(value);
      };
      const int first_at = interleaved ? 2 * j : j;
      const int second_at = interleaved ? 2 * j + 1 : j + kPairs;
      const C first = get(first_at);
      const C other = get(second_at);
      set(first_at, first * cosine[j] - other * sine[j]);
      set(second_at, other * cosine[j] + first * sine[j]);
    }
    *reinterpret_cast<Pack*>(to) = out_a;
    *reinterpret_cast<Pack*>(to + second) = out_b;
  });
}

template <class T>
void RunRotary(const KernelCall<RotaryAttributes, NoScalars>& call, const Tensor& x, const Tensor& y) {
  using C = ComputeOf<T>;
  const RotaryAttributes& a = call.attributes();
  RotaryExtents n;
  n.seq = x.shape()[1];
  n.heads = x.shape()[2];
  n.pairs = x.shape()[3] / 2;
  n.b_stride = x.strides()[0];
  n.s_stride = x.strides()[1];
  n.h_stride = x.strides()[2];
  n.gap = a.interleaved ? 1 : n.pairs;
  n.step = a.interleaved ? 2 : 1;
  const CudaStreamRef stream = KernelStream(call);
  const Tensor turns = Tensor::Empty(call.context.allocator, kDTypeOf<C>, {2, n.seq, n.pairs});
  C* const cosines = turns.data<C>();
  C* const sines = cosines + n.seq * n.pairs;
  LaunchCuda(stream, GridOver(n.seq * n.pairs), RotaryTurnsKernel<C>, a.base, a.inverse ? -1.0 : 1.0,
             call.input_boxes[0].offset[1], n.pairs, n.seq * n.pairs, cosines, sines);
  constexpr int kPairs = 16 / sizeof(T);
  const auto address = reinterpret_cast<uintptr_t>(x.data()) | reinterpret_cast<uintptr_t>(y.data());
  // Where packs are whole in each half of a head, and every head begins at a multiple of 16 bytes.
  const bool packs = (n.pairs | n.b_stride | n.s_stride | n.h_stride) % kPairs == 0 && address % 16 == 0;
  const int64_t count = y.num_elements() / 2;
  if (packs) {
    LaunchCuda(stream, GridOver(count / kPairs), RotaryKernel<T, kPairs>, n, x.data<T>(), y.data<T>(),
               cosines, sines, count / kPairs);
  } else {
    LaunchCuda(stream, GridOver(count), RotaryKernel<T, 1>, n, x.data<T>(), y.data<T>(), cosines, sines,
               count);
  }
}

void Rotary(const KernelCall<RotaryAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const int last = y.ndim() - 1;
  // All dims between s and e as one: [b, s, heads, e].
  Shape shape = {y.shape()[0], y.shape()[1], 1, y.shape()[last]};
  for (int dim = 2; dim < last; ++dim) shape[2] *= y.shape()[dim];
  Tensor x = call.inputs[0];
  if (x.strides()[last] != 1 || !x.CanReshape(shape)) x = CloneTensor(x, call.context.allocator);
  VisitFloating(x.dtype(), "rotary", [&](auto tag) {
    RunRotary<typename decltype(tag)::type>(call, x.Reshape(shape), y.Reshape(shape));
  });
}

const RegisterKernel kRegister(kRotary, DeviceType::kCuda, Rotary);

}  // namespace
}  // namespace weft
