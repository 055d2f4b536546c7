#include "ops/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "ops/cpu/reduce/reduce_groups.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/map_elements.h"
#include "ops/cpu/spans/sum_elements.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A reduction of elements of type T. Short runs combine in Block, runs in Wide; results are of type Wide, and
// Next reduces those further.
template <class T>
struct Adder {
  static constexpr bool kInteger = std::is_integral_v<T>;
  using Block = std::conditional_t<kInteger, uint64_t, ArithmeticType<T>>;  // unsigned: integers wrap
  using Wide = std::conditional_t<kInteger, uint64_t, double>;
  using Next = Adder<Wide>;
  static constexpr Block kIdentity = 0;
  static Block Lift(T x) { return ConvertElement<Block>(x); }
  template <class V>
  static V Combine(V a, V b) {
    return a + b;
  }
};

template <>
struct Adder<uint64_t> {
  using Block = uint64_t;
  using Wide = uint64_t;
  using Next = Adder<uint64_t>;
  static constexpr uint64_t kIdentity = 0;
  static uint64_t Lift(uint64_t x) { return x; }
  static uint64_t Combine(uint64_t a, uint64_t b) { return a + b; }
};

template <class T>
struct SquareAdder : Adder<T> {
  using Block = typename Adder<T>::Block;
  static Block Lift(T x) { return ConvertElement<Block>(x) * ConvertElement<Block>(x); }
};

// Products leave the range of float long before the result does.
template <class T>
struct Multiplier {
  using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  using Block = Wide;
  using Next = Multiplier<Wide>;
  static constexpr Block kIdentity = 1;
  static Block Lift(T x) { return ConvertElement<Block>(x); }
  static Block Combine(Block a, Block b) { return a * b; }
};

template <>
struct Multiplier<uint64_t> {
  using Wide = uint64_t;
  using Block = uint64_t;
  using Next = Multiplier<uint64_t>;
  static constexpr Block kIdentity = 1;
  static Block Lift(uint64_t x) { return x; }
  static Block Combine(uint64_t a, uint64_t b) { return a * b; }
};

// The largest or the smallest; a NaN stays.
template <class T, bool kLargest>
struct Extremum {
  using Block = ArithmeticType<T>;
  using Wide = Block;
  using Next = Extremum<Wide, kLargest>;
  using Limits = std::numeric_limits<Block>;
  static constexpr Block kLeast = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  static constexpr Block kMost = Limits::has_infinity ? Limits::infinity() : Limits::max();
  static constexpr Block kIdentity = kLargest ? kLeast : kMost;
  static Block Lift(T x) { return ConvertElement<Block>(x); }
  static Block Combine(Block a, Block b) {
    const bool wins = kLargest ? b > a : b < a;
    return wins || b != b ? b : a;
  }
};

// Two levels: up to 16 elements of a chain combine in the element's own compute type, which is fast, and then
// go to Wide. So a long sum of floats loses little more than one of 16 does, at the price of one conversion
// per run.
constexpr int kLanes = 32;          // independent chains in a row: enough for any vector unit
constexpr int64_t kRun = kSumRun;   // elements of a row that combine in Block: 16 a lane
constexpr int64_t kRunRows = 16;    // rows of a column that do
constexpr int64_t kColumns = 1024;  // columns that go together
constexpr int64_t kTaskElements = 32768;
constexpr int64_t kMaxChunks = 256;  // of one reduced dim: bounds the scratch memory

// What is added up by vectors, in the order of the loops below: same bits, several times as fast.
template <class R, class T>
constexpr bool kAddsSpans = std::is_same_v<ArithmeticType<T>, float> &&
                            (std::is_same_v<R, Adder<T>> || std::is_same_v<R, SquareAdder<T>>);
template <class R, class T>
constexpr bool kSquares = std::is_same_v<R, SquareAdder<T>>;

// n contiguous elements.
template <class R, class T>
typename R::Wide ReduceRow(const T* x, int64_t n) {
  using Block = typename R::Block;
  using Wide = typename R::Wide;
  Wide total = static_cast<Wide>(R::kIdentity);
  if (n < kLanes) {
    for (int64_t i = 0; i < n; ++i) total = R::Combine(total, static_cast<Wide>(R::Lift(x[i])));
    return total;
  }
  if constexpr (kAddsSpans<R, T>) return SumElements<kSquares<R, T>>(total, x, n);
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = std::min(begin + kRun, n);
    Block lanes[kLanes];
    std::fill_n(lanes, kLanes, R::kIdentity);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) lanes[j] = R::Combine(lanes[j], R::Lift(x[i + j]));
    }
    for (int j = 0; i < end; ++i, ++j) lanes[j] = R::Combine(lanes[j], R::Lift(x[i]));
    for (int half = kLanes / 2; half >= 4; half /= 2) {
      for (int j = 0; j < half; ++j) lanes[j] = R::Combine(lanes[j], lanes[j + half]);
    }
    for (int j = 0; j < 4; ++j) total = R::Combine(total, static_cast<Wide>(lanes[j]));
  }
  return total;
}

// `columns` <= kColumns neighbouring columns of `rows` rows, `stride` apart.
// Down columns, memory is read row by row and the running results of up to 1024 columns stay in cache.
template <class R, class T>
void ReduceColumns(const T* x, int64_t rows, int64_t columns, int64_t stride, typename R::Wide* out) {
  using Block = typename R::Block;
  using Wide = typename R::Wide;
  std::fill_n(out, columns, static_cast<Wide>(R::kIdentity));
  Block run[kColumns];
  for (int64_t begin = 0; begin < rows; begin += kRunRows) {
    const int64_t end = std::min(begin + kRunRows, rows);
    std::fill_n(run, columns, R::kIdentity);
    if constexpr (kAddsSpans<R, T>) {
      AddElementRows<kSquares<R, T>>(x + begin * stride, end - begin, columns, stride, run);
    } else {
      for (int64_t row = begin; row < end; ++row) {
        const T* const from = x + row * stride;
        for (int64_t i = 0; i < columns; ++i) run[i] = R::Combine(run[i], R::Lift(from[i]));
      }
    }
    for (int64_t i = 0; i < columns; ++i) out[i] = R::Combine(out[i], static_cast<Wide>(run[i]));
  }
}

// Scratch memory for `count` values of at most 8 bytes; a few, as the sum of a small tensor has, lie in here.
template <class Wide>
class Workspace {
 public:
  Workspace(const KernelContext& context, int64_t count) {
    if (count > kFew) bytes_ = Tensor::Empty(context.allocator, DType::kF64, {count});
  }
  Wide* data() { return bytes_.defined() ? static_cast<Wide*>(bytes_.data()) : few_.data(); }

 private:
  static constexpr int64_t kFew = 8;

  std::array<Wide, kFew> few_;  // uninitialised
  Tensor bytes_;
};

// Reduces the middle dim into out [outer, inner]. Where that dim is long it is cut into chunks, a task each,
// whose results are reduced in turn: by the shape alone, whatever the number of threads.
template <class R, class T>
void ReduceMiddle(const KernelContext& context, const T* x, const MiddleDim& m, typename R::Wide* out) {
  using Wide = typename R::Wide;
  if (m.outer * m.inner == 0) return;
  const int64_t columns = std::min(m.inner, kColumns);
  const int64_t num_column_blocks = (m.inner + columns - 1) / columns;
  const int64_t chunk =
      std::max({kTaskElements / columns, 4 * kRunRows, (m.reduced + kMaxChunks - 1) / kMaxChunks});
  const int64_t num_chunks = std::max<int64_t>((m.reduced + chunk - 1) / chunk, 1);
  Workspace<Wide> partials(context, num_chunks > 1 ? m.outer * num_chunks * m.inner : 0);
  Wide* const target = num_chunks > 1 ? partials.data() : out;

  const int64_t unit_elements = std::max<int64_t>(std::min(chunk, m.reduced) * columns, 1);
  const int64_t grain = std::max<int64_t>(kTaskElements / unit_elements, 1);
  context.pool.ParallelFor(m.outer * num_chunks * num_column_blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first_column = unit % num_column_blocks * columns;
      const int64_t part = unit / num_column_blocks;  // (outer, chunk)
      const int64_t first_row = part % num_chunks * chunk;
      const int64_t rows = std::min(chunk, m.reduced - first_row);
      const T* const from = x + (part / num_chunks * m.reduced + first_row) * m.inner + first_column;
      Wide* const to = target + part * m.inner + first_column;
      if (m.inner == 1) {
        *to = ReduceRow<R, T>(from, rows);
      } else {
        ReduceColumns<R, T>(from, rows, std::min(columns, m.inner - first_column), m.inner, to);
      }
    }
  });
  if (num_chunks > 1) {
    ReduceMiddle<typename R::Next, Wide>(context, partials.data(), {m.outer, num_chunks, m.inner}, out);
  }
}

// Reduces `dims` of x into y, each result times `factor` (for means). Results between steps are Wide, so nothing is rounded on the
// way.
template <class R, class T>
void ReduceDims(const KernelCallBase& call, DimMask dims, double factor) {
  using Wide = typename R::Wide;
  Tensor x = call.inputs[0];
  // Rare (a view of a parameter, say), and one pass more; what follows needs rows that lie together.
  if (!x.IsContiguous()) x = CloneTensor(x, call.context.allocator);
  const Tensor& y = call.outputs[0];
  ReduceGroups groups = GroupDims(x.shape(), dims);
  MiddleDim m = TakeInnermost(groups);
  Workspace<Wide> results(call.context, m.outer * m.inner);
  ReduceMiddle<R, T>(call.context, x.data<T>(), m, results.data());
  while (std::any_of(groups.begin(), groups.end(), [](const ReduceGroup& g) { return g.reduced; })) {
    m = TakeInnermost(groups);
    Workspace<Wide> next(call.context, m.outer * m.inner);
    ReduceMiddle<typename R::Next, Wide>(call.context, results.data(), m, next.data());
    results = next;
  }
  const Wide* const wide = results.data();
  VisitDType(y.dtype(), [&](auto tag) {
    using Y = typename decltype(tag)::type;
    Y* const out = y.data<Y>();
    call.context.pool.ParallelFor(y.num_elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if constexpr (std::is_same_v<Wide, double>) {
          out[i] = ConvertElement<Y>(wide[i] * factor);
        } else {
          out[i] = ConvertElement<Y>(wide[i]);
        }
      }
    });
  });
}

template <class Function>
void VisitNumeric(DType dtype, const Function& function) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no reduction of ", DTypeName(dtype));
    } else {
      function(tag);
    }
  });
}

void SumDims(const KernelCallBase& call, DimMask dims, double factor) {
  VisitNumeric(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceDims<Adder<T>, T>(call, dims, factor);
  });
}

void Sum(const KernelCall<ReduceAttributes, NoScalars>& call) {
  SumDims(call, call.attributes().dims, /*factor=*/1);
}

// Divides by the global count, so that pieces add up.
void Mean(const KernelCall<ReduceAttributes, NoScalars>& call) {
  const Shape& global = call.input_boxes[0].global_shape;
  double count = 1;
  for (int dim = 0; dim < global.ndim(); ++dim) {
    if ((call.attributes().dims >> dim & 1) != 0) count *= static_cast<double>(global[dim]);
  }
  SumDims(call, call.attributes().dims, 1 / count);
}

void Prod(const KernelCall<ReduceAttributes, NoScalars>& call) {
  VisitNumeric(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceDims<Multiplier<T>, T>(call, call.attributes().dims, /*factor=*/1);
  });
}

template <bool kLargest>
void ReduceExtremum(const KernelCall<ReduceAttributes, NoScalars>& call) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceDims<Extremum<T, kLargest>, T>(call, call.attributes().dims, /*factor=*/1);
  });
}

void SumSquares(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloating(call.inputs[0].dtype(), "sum_squares", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceDims<SquareAdder<T>, T>(call, AllDims(call.inputs[0].ndim()), /*factor=*/1);
  });
}

// By the global shapes: a piece may have an extent of 1 where the whole has not.
void SumTo(const KernelCall<ShapeAttributes, NoScalars>& call) {
  const Shape& from = call.input_boxes[0].global_shape;
  const Shape& to = call.attributes().shape;
  const int leading = from.ndim() - to.ndim();
  DimMask dims = AllDims(leading);
  for (int dim = 0; dim < to.ndim(); ++dim) {
    if (to[dim] != from[leading + dim]) dims |= DimMaskOf({leading + dim});
  }
  SumDims(call, dims, /*factor=*/1);
}

void BroadcastTo(const KernelCall<BroadcastAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  const Tensor x = WithMissingDims(call.inputs[0], y.ndim(), call.attributes().missing_dims);
  VisitElementType(y.dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    ForEachElementBlock<C>(
        call.context.pool, y.shape(), {{x}, {y, ElementStream::kWrite}},
        [](C* const* spans, int64_t, int64_t n) { std::memcpy(spans[1], spans[0], n * sizeof(C)); });
  });
}

void ExtremumMask(const KernelCall<ReduceAttributes, NoScalars>& call) {
  const Tensor& x = call.inputs[0];
  const ReduceAttributes& attributes = call.attributes();
  const Tensor y = WithMissingDims(call.inputs[1], x.ndim(), attributes.keepdims ? 0 : attributes.dims);
  VisitArithmeticType(x.dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    ForEachElementBlock<C>(call.context.pool, x.shape(), {{x}, {y}, {call.outputs[0], ElementStream::kWrite}},
                           [](C* const* spans, int64_t, int64_t n) {
                             for (int64_t i = 0; i < n; ++i)
                               spans[2][i] = static_cast<C>(spans[0][i] == spans[1][i]);
                           });
  });
}

const RegisterKernel kRegister[] = {
    {kSum, DeviceType::kCpu, Sum},
    {kMean, DeviceType::kCpu, Mean},
    {kReduceMax, DeviceType::kCpu, ReduceExtremum<true>},
    {kReduceMin, DeviceType::kCpu, ReduceExtremum<false>},
    {kProd, DeviceType::kCpu, Prod},
    {kSumSquares, DeviceType::kCpu, SumSquares},
    {kSumTo, DeviceType::kCpu, SumTo},
    {kBroadcastTo, DeviceType::kCpu, BroadcastTo},
    {kExtremumMask, DeviceType::kCpu, ExtremumMask},
};

}  // namespace
}  // namespace weft
