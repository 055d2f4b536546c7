#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/combine.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/cuda/convert_on_device.h"
#include "runtime/tensor/cuda/grid_loop.h"
#include "runtime/tensor/cuda/strided_loops.h"
#include "runtime/tensor/cuda/tensor_stream.h"
#include "runtime/tensor/cuda/visit_word.h"
#include "runtime/tensor/loop_nest.h"
#include "runtime/tensor/tensor_functions.h"

namespace weft {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = 8;

template <class From, class To>
__global__ void ConvertKernel(const From* from, To* to, int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) { to[i] = ConvertOnDevice<To>(from[i]); });
}

// kCount neighbours, which move as one.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T items[kCount];
};

template <class From, class To, int kCount>
__global__ void ConvertPacksKernel(const Pack<From, kCount>* from, Pack<To, kCount>* to, int64_t num_packs) {
  ForEachOfGrid(num_packs, [&](int64_t i) {
    const Pack<From, kCount> pack = from[i];
    Pack<To, kCount> converted;
#pragma unroll
    for (int j = 0; j < kCount; ++j) converted.items[j] = ConvertOnDevice<To>(pack.items[j]);
    to[i] = converted;
  });
}

template <class From, class To>
__global__ void CopyStridedKernel(const From* from, To* to, StridedLoops<2> loops) {
  ForEachOfGrid(loops.count, [&](int64_t i) {
    int64_t at[2];
    loops.Offsets(i, at);
    to[at[1]] = ConvertOnDevice<To>(from[at[0]]);
  });
}

// A matrix of `rows` x `columns`, row-major at `to`, whose columns are contiguous at `from`; one matrix a
// blockIdx.z. Tiles go through shared memory, so that both sides move whole lines.
template <class Word>
__global__ void TransposeKernel(const Word* from, int64_t from_stride, Word* to, int64_t to_stride,
                                int64_t rows, int64_t columns, StridedLoops<2> matrices,
                                int64_t first_matrix) {
  __shared__ Word tile[kTile][kTile + 1];
  int64_t at[2];
  matrices.Offsets(first_matrix + blockIdx.z, at);
  const Word* const source = from + at[0];
  Word* const target = to + at[1];
  const int64_t column = int64_t{blockIdx.x} * kTile;
  const int64_t row = int64_t{blockIdx.y} * kTile;
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    if (column + i < columns && row + threadIdx.x < rows) {
      tile[i][threadIdx.x] = source[(column + i) * from_stride + row + threadIdx.x];
    }
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    if (row + i < rows && column + threadIdx.x < columns) {
      target[(row + i) * to_stride + column + threadIdx.x] = tile[threadIdx.x][i];
    }
  }
}

template <class T>
__global__ void FillKernel(T* to, T value, StridedLoops<1> loops) {
  ForEachOfGrid(loops.count, [&](int64_t i) {
    int64_t at[1];
    loops.Offsets(i, at);
    to[at[0]] = value;
  });
}

template <ReduceOp kOp, class T>
__global__ void AccumulateKernel(const T* from, T* to, StridedLoops<2> loops) {
  ForEachOfGrid(loops.count, [&](int64_t i) {
    int64_t at[2];
    loops.Offsets(i, at);
    to[at[1]] = Combine<kOp>(to[at[1]], from[at[0]]);
  });
}

// The loop of `nest` in which `from` has stride 1, or -1.
int UnitFromLoop(const LoopNest& nest) {
  for (int loop = nest.inner(); loop >= 0; --loop) {
    if (nest.from_strides[loop] == 1) return loop;
  }
  return -1;
}

// True if it was one: `to` contiguous along the innermost loop, `from` along another, both long enough.
bool CopyTransposed(const LoopNest& nest, const Tensor& from, const Tensor& to) {
  constexpr int64_t kLeast = 16;
  constexpr int64_t kMostMatrices = 65535;
  const int inner = nest.inner();
  const int unit = UnitFromLoop(nest);
  if (unit < 0 || unit == inner || nest.to_strides[inner] != 1) return false;
  const int64_t rows = nest.extents[unit];
  const int64_t columns = nest.extents[inner];
  if (rows < kLeast || columns < kLeast || (rows + kTile - 1) / kTile > kMostMatrices) return false;
  Shape outer;
  Shape strides[2];
  for (int loop = 0; loop < inner; ++loop) {
    if (loop == unit) continue;
    outer.push_back(nest.extents[loop]);
    strides[0].push_back(nest.from_strides[loop]);
    strides[1].push_back(nest.to_strides[loop]);
  }
  const StridedLoops<2> matrices = MakeStridedLoops(outer, strides);
  VisitWord(ItemSize(to.dtype()), [&](auto tag) {
    using Word = typename decltype(tag)::type;
    for (int64_t first = 0; first < matrices.count; first += kMostMatrices) {
      const dim3 blocks(static_cast<unsigned>((columns + kTile - 1) / kTile),
                        static_cast<unsigned>((rows + kTile - 1) / kTile),
                        static_cast<unsigned>(std::min(kMostMatrices, matrices.count - first)));
      LaunchCuda(CudaStreamOf(to), {.blocks = blocks, .threads = dim3(kTile, kTileRows)},
                 TransposeKernel<Word>, static_cast<const Word*>(from.data()), nest.from_strides[inner],
                 static_cast<Word*>(to.data()), nest.to_strides[unit], rows, columns, matrices, first);
    }
  });
  return true;
}

// Whether elements of `item` bytes can move as words of `bytes`: if neighbours along the innermost loop are neighbours in
// memory, on both sides. Then `nest` counts words.
bool MakeWords(int64_t item, int64_t bytes, const Tensor& from, const Tensor& to, LoopNest* nest) {
  const int64_t count = bytes / item;
  const int inner = nest->inner();
  const auto is_aligned = [&](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.data()) % static_cast<uint64_t>(bytes) == 0;
  };
  bool fits = count > 1 && nest->from_strides[inner] == 1 && nest->to_strides[inner] == 1 &&
              nest->extents[inner] % count == 0 && is_aligned(from) && is_aligned(to);
  for (int loop = 0; loop < inner; ++loop) {
    fits = fits && nest->from_strides[loop] % count == 0 && nest->to_strides[loop] % count == 0;
  }
  if (!fits) return false;
  nest->extents[inner] /= count;
  for (int loop = 0; loop < inner; ++loop) {
    nest->from_strides[loop] /= count;
    nest->to_strides[loop] /= count;
  }
  return true;
}

void CopySameType(const Tensor& from, const Tensor& to) {
  LoopNest nest = MakeLoopNest(to.shape(), from.strides(), to.strides());
  if (nest.inner() == 0 && nest.from_strides[0] == 1 && nest.to_strides[0] == 1) {
    CheckCuda(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(to.num_bytes()),
                              cudaMemcpyDeviceToDevice, CudaStreamOf(to).handle()),
              "cudaMemcpyAsync");
    return;
  }
  if (CopyTransposed(nest, from, to)) return;
  const auto copy = [&](auto tag) {
    using Word = typename decltype(tag)::type;
    const StridedLoops<2> loops = MakeStridedLoops(nest.extents, {nest.from_strides, nest.to_strides});
    LaunchCuda(CudaStreamOf(to), GridOver(loops.count), CopyStridedKernel<Word, Word>,
               static_cast<const Word*>(from.data()), static_cast<Word*>(to.data()), loops);
  };
  const int64_t item = ItemSize(to.dtype());
  if (MakeWords(item, /*bytes=*/16, from, to, &nest)) return copy(TypeTag<uint4>());
  VisitWord(MakeWords(item, /*bytes=*/8, from, to, &nest) ? 8 : item, copy);
}

// Elements that lie one after the other on both sides. True if it has issued their conversion in packs.
template <class From, class To>
bool ConvertPacks(const Tensor& from, const Tensor& to) {
  if constexpr (kIsFloatingType<From> && kIsFloatingType<To>) {
    constexpr int kCount = static_cast<int>(16 / std::max(sizeof(From), sizeof(To)));
    const auto is_aligned = [](const void* data, size_t item) {
      return reinterpret_cast<uintptr_t>(data) % (item * kCount) == 0;
    };
    const int64_t num_packs = to.num_elements() / kCount;
    if (to.num_elements() % kCount != 0 || !is_aligned(from.data(), sizeof(From)) ||
        !is_aligned(to.data(), sizeof(To))) {
      return false;
    }
    LaunchCuda(CudaStreamOf(to), GridOver(num_packs), ConvertPacksKernel<From, To, kCount>,
               static_cast<const Pack<From, kCount>*>(from.data()), static_cast<Pack<To, kCount>*>(to.data()),
               num_packs);
    return true;
  }
  return false;
}

void Copy(const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) {
    if (from.data() != to.data() || from.strides() != to.strides()) CopySameType(from, to);
    return;
  }
  const LoopNest nest = MakeLoopNest(to.shape(), from.strides(), to.strides());
  const StridedLoops<2> loops = MakeStridedLoops(nest.extents, {nest.from_strides, nest.to_strides});
  const CudaGrid grid = GridOver(loops.count);
  VisitDType(from.dtype(), [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    VisitDType(to.dtype(), [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if (IsContiguousIn(loops, 0) && IsContiguousIn(loops, 1)) {
        if (ConvertPacks<From, To>(from, to)) return;
        LaunchCuda(CudaStreamOf(to), grid, ConvertKernel<From, To>, from.data<From>(), to.data<To>(),
                   loops.count);
      } else {
        LaunchCuda(CudaStreamOf(to), grid, CopyStridedKernel<From, To>, from.data<From>(), to.data<To>(),
                   loops);
      }
    });
  });
}

// Row-major in memory of its own, unless it is so already.
Tensor Contiguous(const Tensor& tensor) {
  if (tensor.IsContiguous()) return tensor;
  const Tensor packed = Tensor::Empty(tensor.buffer()->allocator(), tensor.dtype(), tensor.shape());
  Copy(tensor, packed);
  return packed;
}

// These run on workers, too, which have no device of their own.

void ToHost(const Tensor& from, void* to) {
  const CudaDeviceGuard guard(from.device().index);
  const Tensor packed = Contiguous(from);
  const CudaStreamRef stream = CudaStreamOf(from);
  CheckCuda(cudaMemcpyAsync(to, packed.data(), static_cast<size_t>(packed.num_bytes()),
                            cudaMemcpyDeviceToHost, stream.handle()),
            "cudaMemcpyAsync");
  stream.Synchronize();
}

// CUDA has taken what lies in ordinary memory when the call returns; pinned memory is read later.
void FromHost(const void* from, const Tensor& to) {
  const CudaDeviceGuard guard(to.device().index);
  const Tensor packed =
      to.IsContiguous() ? to : Tensor::Empty(to.buffer()->allocator(), to.dtype(), to.shape());
  const CudaStreamRef stream = CudaStreamOf(to);
  CheckCuda(cudaMemcpyAsync(packed.data(), from, static_cast<size_t>(packed.num_bytes()),
                            cudaMemcpyHostToDevice, stream.handle()),
            "cudaMemcpyAsync");
  if (packed.data() != to.data()) Copy(packed, to);
  stream.Synchronize();
}

// From pinned memory, which CUDA reads and writes when the stream comes to it.
void IssueCopy(const Tensor& from, const Tensor& to) {
  const bool to_host = to.device().type == DeviceType::kCpu;
  const CudaDeviceGuard guard((to_host ? from : to).device().index);
  CheckCuda(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(to.num_bytes()),
                            to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                            CudaStreamOf(to_host ? from : to).handle()),
            "cudaMemcpyAsync");
}

void Fill(const Tensor& tensor, double value) {
  const StridedLoops<1> loops = MakeStridedLoops(tensor.shape(), {tensor.strides()});
  VisitDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(CudaStreamOf(tensor), GridOver(loops.count), FillKernel<T>, tensor.data<T>(),
               ConvertElement<T>(value), loops);
  });
}

void Accumulate(const Tensor& from, const Tensor& to, ReduceOp op) {
  const StridedLoops<2> loops = MakeStridedLoops(to.shape(), {from.strides(), to.strides()});
  VisitDType(to.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    VisitReduceOp(op, [&](auto kind) {
      constexpr ReduceOp kOp = decltype(kind)::value;
      LaunchCuda(CudaStreamOf(to), GridOver(loops.count), AccumulateKernel<kOp, T>, from.data<T>(),
                 to.data<T>(), loops);
    });
  });
}

// From pageable memory the driver would copy before the call returns, and so wait.
class CudaToHost final : public DeviceToHost {
 public:
  Tensor Begin(const Tensor& from) override {
    const Tensor packed = Contiguous(from);
    if (!host_.defined() || host_.dtype() != from.dtype() || host_.shape() != from.shape()) {
      host_ = Tensor::Empty(MakePinnedAllocator(), from.dtype(), from.shape());
    }
    const CudaStreamRef stream = CudaStreamOf(from);
    CheckCuda(cudaMemcpyAsync(host_.data(), packed.data(), static_cast<size_t>(packed.num_bytes()),
                              cudaMemcpyDeviceToHost, stream.handle()),
              "cudaMemcpyAsync");
    done_.Record(stream);
    return host_;
  }
  void Wait() override { done_.Synchronize(); }

 private:
  Tensor host_;
  CudaEvent done_;
};

std::unique_ptr<DeviceToHost> MakeDeviceToHost() { return std::make_unique<CudaToHost>(); }

// On a stream of its own, so that the copy runs beside the rank's kernels. It waits for what was issued before it: memory of
// the pool may still be in use by what its last owner issued.
class CudaFromHost final : public HostToDevice {
 public:
  ~CudaFromHost() override { cudaStreamSynchronize(stream_.ref().handle()); }

  void Begin(const Tensor& from, const Tensor& to) override {
    rank_stream_ = CudaStreamOf(to);
    issued_.Record(rank_stream_);
    stream_.ref().WaitFor(issued_);
    CheckCuda(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(from.num_bytes()),
                              cudaMemcpyHostToDevice, stream_.ref().handle()),
              "cudaMemcpyAsync");
    done_.Record(stream_.ref());
    has_begun_ = true;
  }
  void Join() override {
    if (has_begun_) rank_stream_.WaitFor(done_);
  }
  void Wait() override { done_.Synchronize(); }

 private:
  CudaStream stream_;
  CudaEvent issued_;
  CudaEvent done_;
  CudaStreamRef rank_stream_;
  bool has_begun_ = false;
};

std::unique_ptr<HostToDevice> MakeHostToDevice() { return std::make_unique<CudaFromHost>(); }

const RegisterTensorFunctions kRegister(DeviceType::kCuda, {.copy = &Copy,
                                                            .to_host = &ToHost,
                                                            .from_host = &FromHost,
                                                            .issue_copy = &IssueCopy,
                                                            .fill = &Fill,
                                                            .accumulate = &Accumulate,
                                                            .make_device_to_host = &MakeDeviceToHost,
                                                            .make_host_to_device = &MakeHostToDevice});

}  // namespace
}  // namespace weft
