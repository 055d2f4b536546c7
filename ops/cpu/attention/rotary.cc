#include "ops/attention/rotary.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// In double until the table: at position 100,000 a float's angle is wrong by up to 0.004.
struct Turn {
  double cosine;
  double sine;
};

Turn TurnBy(double angle) { return {std::cos(angle), std::sin(angle)}; }

// Turn by the sum of two angles.
Turn operator*(const Turn& a, const Turn& b) {
  return {a.cosine * b.cosine - a.sine * b.sine, a.sine * b.cosine + a.cosine * b.sine};
}

// cos and sin of position * frequency for positions [offset, offset + rows) and every pair: two tensors
// [rows, pairs].
struct TurnTable {
  Tensor cosines;
  Tensor sines;
};

// Libm is slow, so the angle of position 64 i + j is turned as that of 64 i and that of j. Both are functions
// of the global position, so a piece of the sequence gets the bits that the whole would.
template <class C>
TurnTable MakeTurns(KernelContext& context, int64_t offset, int64_t rows, int64_t pairs,
                    const RotaryAttributes& a) {
  constexpr int64_t kStride = 64;
  std::vector<double> frequencies;
  for (int64_t j = 0; j < pairs; ++j) {
    const double frequency = std::pow(a.base, -static_cast<double>(j) / static_cast<double>(pairs));
    frequencies.push_back(a.inverse ? -frequency : frequency);
  }
  std::vector<Turn> fine;
  for (int64_t i = 0; i < std::min(kStride, offset + rows); ++i) {
    for (double frequency : frequencies) fine.push_back(TurnBy(static_cast<double>(i) * frequency));
  }
  const TurnTable table = {Tensor::Empty(context.allocator, kDTypeOf<C>, {rows, pairs}),
                           Tensor::Empty(context.allocator, kDTypeOf<C>, {rows, pairs})};
  context.pool.ParallelFor(rows, kStride, [&](int64_t begin, int64_t end) {
    std::vector<Turn> coarse(pairs);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = offset + row;
      // Tasks begin anywhere in a stride, where the coarse angles are made anew: the table does not depend on
      // how rows are cut.
      if (row == begin || position % kStride == 0) {
        const double start = static_cast<double>(position / kStride * kStride);
        for (int64_t j = 0; j < pairs; ++j) coarse[j] = TurnBy(start * frequencies[j]);
      }
      C* const cosines = table.cosines.data<C>() + row * pairs;
      C* const sines = table.sines.data<C>() + row * pairs;
      for (int64_t j = 0; j < pairs; ++j) {
        const Turn turn = coarse[j] * fine[position % kStride * pairs + j];
        cosines[j] = static_cast<C>(turn.cosine);
        sines[j] = static_cast<C>(turn.sine);
      }
    }
  });
  return table;
}

template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

// One row of pairs; y may not overlap x. `gap` lies between the two of a pair, `step` between pairs.
template <class T>
void TurnRow(const T* x, T* y, int64_t pairs, int64_t gap, int64_t step, const ComputeType<T>* cosines,
             const ComputeType<T>* sines) {
  using C = ComputeType<T>;
  for (int64_t j = 0; j < pairs; ++j) {
    const C first = static_cast<C>(x[j * step]);
    const C second = static_cast<C>(x[j * step + gap]);
    y[j * step] = static_cast<T>(first * cosines[j] - second * sines[j]);
    y[j * step + gap] = static_cast<T>(second * cosines[j] + first * sines[j]);
  }
}

template <class T>
void RunRotary(const KernelCall<RotaryAttributes, NoScalars>& call, const Tensor& x, const Tensor& y) {
  const RotaryAttributes& a = call.attributes();
  const int64_t seq = x.shape()[1];
  const int64_t heads = x.shape()[2];
  const int64_t pairs = x.shape()[3] / 2;
  using C = ComputeType<T>;
  // Once per call and read by every batch element and head. The gradient is the rotation by the negative
  // angle, so backward is this kernel as well.
  const TurnTable table = MakeTurns<C>(call.context, call.input_boxes[0].offset[1], seq, pairs, a);
  const int64_t gap = a.interleaved ? 1 : pairs;
  const int64_t step = a.interleaved ? 2 : 1;
  // Elements of one task.
  constexpr int64_t kTaskElements = int64_t{1} << 15;
  const int64_t grain = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, heads * pairs));
  call.context.pool.ParallelFor(x.shape()[0] * seq, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % seq;
      const T* const from = x.data<T>() + i / seq * x.strides()[0] + row * x.strides()[1];
      T* const to = y.data<T>() + i * heads * 2 * pairs;
      for (int64_t head = 0; head < heads; ++head) {
        TurnRow(from + head * x.strides()[2], to + head * 2 * pairs, pairs, gap, step,
                table.cosines.data<C>() + row * pairs, table.sines.data<C>() + row * pairs);
      }
    }
  });
}

void Rotary(const KernelCall<RotaryAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const int last = y.ndim() - 1;
  // All dims between s and e as one: [b, s, heads, e].
  Shape shape = {y.shape()[0], y.shape()[1], 1, y.shape()[last]};
  for (int dim = 2; dim < last; ++dim) shape[2] *= y.shape()[dim];
  Tensor x = call.inputs[0];
  if (x.strides()[last] != 1 || !x.CanReshape(shape)) {
    x = ParallelClone(call.context.pool, x, call.context.allocator);
  }
  VisitFloating(x.dtype(), "rotary", [&](auto tag) {
    RunRotary<typename decltype(tag)::type>(call, x.Reshape(shape), y.Reshape(shape));
  });
}

const RegisterKernel kRegister(kRotary, DeviceType::kCpu, Rotary);

}  // namespace
}  // namespace weft
