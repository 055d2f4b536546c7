#include "ops/cpu/spans/element_blocks.h"

#include <algorithm>
#include <array>

#include "absl/container/inlined_vector.h"
#include "runtime/tensor/convert_spans.h"

namespace weft {
namespace {

// 64 KiB of floats per stream, so that the start of a task counts for little.
constexpr int64_t kGrain = 16384;  // elements a task
// A buffer of doubles is 4 KiB, so six streams of them fit in a first-level cache of 32 KiB.
// Rows shorter than kWorthwhileRow go through it too: in place they would save a copy, but a block costs a
// call and a division per dim.
constexpr int64_t kBuffered = 512;      // elements a block where a stream goes through a buffer
constexpr int64_t kWorthwhileRow = 64;  // rows at least this long are blocks of their own

// The common shape without extents of 1, neighbouring dims merged where every stream allows it: at least one
// dim.
struct Loops {
  Shape extents;
  std::array<Shape, kMaxElementStreams> strides;

  int64_t row() const { return extents[extents.ndim() - 1]; }
};

// Fewer and longer loops: a dense tensor of any shape becomes one row, and a row is what spans are cut from.
Loops MakeLoops(const Shape& shape, absl::Span<const Tensor> views) {
  Loops loops;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (shape[dim] == 1) continue;
    const int last = loops.extents.ndim() - 1;
    bool merges = last >= 0;
    for (size_t i = 0; i < views.size() && merges; ++i) {
      merges = loops.strides[i][last] == views[i].strides()[dim] * shape[dim];
    }
    if (!merges) loops.extents.push_back(shape[dim]);
    if (merges) loops.extents[last] *= shape[dim];
    for (size_t i = 0; i < views.size(); ++i) {
      if (merges) {
        loops.strides[i][last] = views[i].strides()[dim];
      } else {
        loops.strides[i].push_back(views[i].strides()[dim]);
      }
    }
  }
  if (loops.extents.ndim() == 0) {
    loops.extents.push_back(1);
    for (size_t i = 0; i < views.size(); ++i) loops.strides[i].push_back(1);
  }
  return loops;
}

// Calls visit(offset, done, n) for the stretches of [first, first + n) that lie in one row: `offset` is that
// of the stretch's first element in the tensor, `done` the elements before it.
template <class Visit>
void ForEachStretch(const Loops& loops, const Shape& strides, int64_t first, int64_t n, const Visit& visit) {
  // One division per dim and stretch, none per element: merged dims make stretches long.
  const int inner = loops.extents.ndim() - 1;
  for (int64_t done = 0; done < n;) {
    int64_t rest = (first + done) / loops.row();
    const int64_t column = (first + done) % loops.row();
    int64_t offset = column * strides[inner];
    for (int dim = inner - 1; dim >= 0; --dim) {
      offset += rest % loops.extents[dim] * strides[dim];
      rest /= loops.extents[dim];
    }
    const int64_t length = std::min(n - done, loops.row() - column);
    visit(offset, done, length);
    done += length;
  }
}

template <class C, class T>
void Load(const Loops& loops, const Shape& strides, const void* data, int64_t first, int64_t n, C* out) {
  const int64_t stride = strides[strides.ndim() - 1];
  ForEachStretch(loops, strides, first, n, [&](int64_t offset, int64_t done, int64_t length) {
    const T* const from = static_cast<const T*>(data) + offset;
    C* const to = out + done;
    if (stride == 1) {
      ConvertSpan(from, to, length);
    } else {
      for (int64_t i = 0; i < length; ++i) to[i] = ConvertElement<C>(from[i * stride]);
    }
  });
}

template <class C, class T>
void Store(const Loops& loops, const Shape& strides, void* data, int64_t first, int64_t n, const C* in) {
  const int64_t stride = strides[strides.ndim() - 1];
  ForEachStretch(loops, strides, first, n, [&](int64_t offset, int64_t done, int64_t length) {
    T* const to = static_cast<T*>(data) + offset;
    const C* const from = in + done;
    if (stride == 1) {
      ConvertSpan(from, to, length);
    } else {
      for (int64_t i = 0; i < length; ++i) to[i * stride] = ConvertElement<T>(from[i]);
    }
  });
}

// How blocks of one stream are had.
template <class C>
struct Access {
  enum Kind {
    kInPlace,  // elements lie row-major as C
    kRow,      // every row does: in place where blocks keep to rows
    kUniform,  // one element, repeated
    kBuffer,
  };
  Kind kind;
  ElementStream::Use use;
  void* data;
  const Shape* strides;
  void (*load)(const Loops&, const Shape&, const void*, int64_t, int64_t, C*);
  void (*store)(const Loops&, const Shape&, void*, int64_t, int64_t, const C*);
};

template <class C>
Access<C> MakeAccess(const Loops& loops, const Shape& strides, const Tensor& view, ElementStream::Use use) {
  Access<C> access = {Access<C>::kBuffer, use, view.data(), &strides, nullptr, nullptr};
  VisitDType(view.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    access.load = Load<C, T>;
    access.store = Store<C, T>;
  });
  // From the cheapest way to the dearest; a scalar that is broadcast is filled in once per task, not per
  // block.
  const bool is_c = view.dtype() == kDTypeOf<C>;
  const auto is_zero = [](int64_t stride) { return stride == 0; };
  if (is_c && strides == ContiguousStrides(loops.extents)) {
    access.kind = Access<C>::kInPlace;
  } else if (is_c && strides[strides.ndim() - 1] == 1 && loops.row() >= kWorthwhileRow) {
    access.kind = Access<C>::kRow;
  } else if (std::all_of(strides.begin(), strides.end(), is_zero)) {
    access.kind = Access<C>::kUniform;
  }
  return access;
}

// One task: elements [begin, end), in blocks of at most `max_block` that keep to rows if `by_row`.
// The body sees plain arrays whatever lies below: strides and dtypes cost what a copy within the
// first cache does, and every kernel is written once. Blocks in place may be as long as a task,
// since nothing is buffered.
template <class C>
void RunBlocks(const Loops& loops, absl::Span<const Access<C>> accesses, bool by_row, int64_t max_block,
               int64_t begin, int64_t end, ElementBlockBody<C> body) {
  alignas(64) C buffers[kMaxElementStreams][kBuffered];
  std::array<C*, kMaxElementStreams> spans;
  for (size_t i = 0; i < accesses.size(); ++i) {
    spans[i] = buffers[i];
    if (accesses[i].kind != Access<C>::kUniform) continue;
    accesses[i].load(loops, *accesses[i].strides, accesses[i].data, 0, 1, buffers[i]);
    std::fill(buffers[i] + 1, buffers[i] + kBuffered, buffers[i][0]);
  }
  for (int64_t first = begin, n = 0; first < end; first += n) {
    n = std::min(end - first, max_block);
    // A stream whose rows are apart can be passed in place only up to a row's end, and spans are
    // of one length.
    if (by_row) n = std::min(n, loops.row() - first % loops.row());
    for (size_t i = 0; i < accesses.size(); ++i) {
      const Access<C>& access = accesses[i];
      if (access.kind == Access<C>::kInPlace) {
        spans[i] = static_cast<C*>(access.data) + first;
      } else if (access.kind == Access<C>::kRow) {
        ForEachStretch(loops, *access.strides, first, n, [&](int64_t offset, int64_t, int64_t) {
          spans[i] = static_cast<C*>(access.data) + offset;
        });
      } else if (access.kind == Access<C>::kBuffer && access.use != ElementStream::kWrite) {
        access.load(loops, *access.strides, access.data, first, n, spans[i]);
      }
    }
    body(spans.data(), first, n);
    for (size_t i = 0; i < accesses.size(); ++i) {
      const Access<C>& access = accesses[i];
      if (access.kind != Access<C>::kBuffer || access.use == ElementStream::kRead) continue;
      access.store(loops, *access.strides, access.data, first, n, spans[i]);
    }
  }
}

// Whether all elements of all streams lie row-major as C: then nothing is to be worked out, which is most of
// the time that a small call takes.
template <class C>
bool AllLieInPlace(const Shape& shape, absl::Span<const ElementStream> streams) {
  return std::all_of(streams.begin(), streams.end(), [&](const ElementStream& stream) {
    return stream.tensor.dtype() == kDTypeOf<C> && stream.tensor.shape() == shape &&
           stream.tensor.IsContiguous();
  });
}

}  // namespace

// The cut is by elements of the common shape, whatever the strides: the pool divides a broadcast
// as evenly as a dense call.
template <class C>
void ForEachElementBlock(ThreadPool& pool, const Shape& shape, absl::Span<const ElementStream> streams,
                         ElementBlockBody<C> body) {
  const int64_t num_elements = shape.num_elements();
  if (num_elements == 0) return;
  WEFT_CHECK(streams.size() <= kMaxElementStreams, "elementwise kernel over ", streams.size(), " tensors");
  if (AllLieInPlace<C>(shape, streams)) {
    std::array<C*, kMaxElementStreams> origins;
    for (size_t i = 0; i < streams.size(); ++i) origins[i] = static_cast<C*>(streams[i].tensor.data());
    pool.ParallelFor(num_elements, kGrain, [&](int64_t begin, int64_t end) {
      std::array<C*, kMaxElementStreams> spans;
      for (size_t i = 0; i < streams.size(); ++i) spans[i] = origins[i] + begin;
      body(spans.data(), begin, end - begin);
    });
    return;
  }
  absl::InlinedVector<Tensor, kMaxElementStreams> views;
  for (const ElementStream& stream : streams) {
    WEFT_CHECK(stream.use == ElementStream::kRead || stream.tensor.shape() == shape, "cannot write ",
               stream.tensor.TypeString(), " as ", shape.ToString());
    views.push_back(stream.tensor.Expand(shape));
  }
  const Loops loops = MakeLoops(shape, views);
  absl::InlinedVector<Access<C>, kMaxElementStreams> accesses;
  bool by_row = false;
  int64_t max_block = kGrain;
  for (size_t i = 0; i < streams.size(); ++i) {
    accesses.push_back(MakeAccess<C>(loops, loops.strides[i], views[i], streams[i].use));
    by_row = by_row || accesses[i].kind == Access<C>::kRow;
    if (accesses[i].kind >= Access<C>::kUniform) max_block = kBuffered;
  }
  pool.ParallelFor(num_elements, kGrain, [&](int64_t begin, int64_t end) {
    RunBlocks<C>(loops, accesses, by_row, max_block, begin, end, body);
  });
}

template void ForEachElementBlock<float>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                         ElementBlockBody<float>);
template void ForEachElementBlock<double>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                          ElementBlockBody<double>);
template void ForEachElementBlock<BFloat16>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                            ElementBlockBody<BFloat16>);
template void ForEachElementBlock<int32_t>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                           ElementBlockBody<int32_t>);
template void ForEachElementBlock<int64_t>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                           ElementBlockBody<int64_t>);

}  // namespace weft
