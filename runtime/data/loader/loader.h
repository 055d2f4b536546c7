// Batches of a dataset, read ahead.

#ifndef WEFT_RUNTIME_DATA_LOADER_LOADER_H_
#define WEFT_RUNTIME_DATA_LOADER_LOADER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/data/dataset/dataset.h"
#include "runtime/data/loader/data_position.h"
#include "runtime/data/loader/read_ahead.h"
#include "runtime/data/sampling/sampler.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/device_copy.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Some consecutive samples of a batch.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const RowRange&) const = default;
};

struct LoaderOptions {
  int64_t batch = 0;  // samples of a step, over all ranks
  // Those of [0, batch) that this rank reads, in this order: one range per microbatch, say. Ranges may be empty, and other
  // ranks may read the same. No range: all.
  std::vector<RowRange> rows = {};
  int num_threads = 1;  // that read; 0: Get does
  int64_t ahead =
      2;  // batches that are read before they are asked for, at least 1; on a device, one of them is there
  int64_t position = 0;  // samples consumed before the first batch
  // How long Get waits for a batch. The destructor waits for reads that are under way no longer than this or a second: a
  // thread that is stuck in one is left behind, with what it touches, and ends when its read does.
  std::chrono::milliseconds patience = std::chrono::minutes(10);
};

// This rank's rows of one step.
struct LoaderBatch {
  int64_t position = 0;        // of the batch's first sample: samples consumed before it
  std::vector<Tensor> fields;  // [rows, ...], per field of the dataset
  double wait_s = 0;           // how long Get has waited for it
};

// Reads a sampler's sequence of a dataset batch by batch: the batch at position p has samples p, p + 1, ..., whatever the
// number of ranks; each rank asks for its own rows of it. Epochs follow each other without a gap: a batch may have the
// end of one and the beginning of the next.
//
// Memory is that of `ahead` batches and of those that its user holds, of the user's allocator. For a device, the batches
// ahead lie in memory of the host, and the next one is copied beside what the device computes. What the loader has read
// ahead is no part of its position, so a position may be saved at any time.
//
// Threads: one thread uses it, the rank's: it allocates. The dataset is read from threads of the loader.
class Loader {
 public:
  // `allocator`: of the batches, of any device; null: one of the loader's own, on the CPU.
  // Errors: InvalidArgument for a batch below 1, rows outside it, a sampler of other samples than the dataset's, fewer than 0
  //         threads or 1 batch ahead, a position below 0; ResourceExhausted for threads or memory.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
         const LoaderOptions& options, std::shared_ptr<Allocator> allocator = nullptr);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The batch at position(), which moves past it.
  // Errors: what Dataset::Read throws, with the sample, its epoch, file and record before the message, of the first row that
  //         fails; DeadlineExceeded if it takes longer than `patience`; ResourceExhausted. The position stays: Get again,
  //         which reads the rows that failed again, with threads and without, or Seek past it.
  LoaderBatch Get();

  // Samples consumed, over all ranks.
  int64_t position() const { return position_; }
  // Goes on at another. What has been read ahead is forgotten.
  // Errors: InvalidArgument for a position below 0.
  void Seek(int64_t position);

  // What a checkpoint keeps: the position and the sampler's text. Another loader goes on from it with other ranks, rows,
  // batch or threads.
  DataPosition State() const { return {.samples = position_, .sampler = sampler_->ToString()}; }
  // Errors: InvalidArgument for the state of another sampler (names both); as Seek.
  void Restore(const DataPosition& state);

  // Batches that are being read or lie ready: at most `ahead`.
  int64_t num_ahead() const { return static_cast<int64_t>(ahead_.size()); }

 private:
  struct Pending {
    int64_t position = 0;
    std::shared_ptr<ReadAhead::Ticket> ticket;
    std::vector<Tensor> fields = {};             // on the device, or on their way; none before that
    std::unique_ptr<DeviceCopy> copy = nullptr;  // of the fields
  };

  Pending Begin(int64_t position);
  void BeginCopy(Pending& pending, const ReadJob& job);

  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const Sampler> sampler_;
  LoaderOptions options_;
  std::shared_ptr<Allocator> allocator_;
  std::shared_ptr<Allocator> host_allocator_;  // what is read into: allocator_ itself on the CPU
  int64_t num_rows_ = 0;
  int64_t position_;
  std::deque<Pending> ahead_;
  std::unique_ptr<DeviceCopy> last_copy_;   // of the batch given out last, whose source may still be read
  std::unique_ptr<DeviceCopy> spare_copy_;  // one that is done, to be used again
  ReadAhead reader_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_LOADER_LOADER_H_
