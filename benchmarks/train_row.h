#ifndef WEFT_BENCHMARKS_TRAIN_ROW_H_
#define WEFT_BENCHMARKS_TRAIN_ROW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "runtime/base/dtype.h"
#include "runtime/device/device.h"
#include "runtime/trace/span.h"

namespace weft {

// What one row of the training benchmark trains, and where. A value.
struct TrainRow {
  std::string model = "gpt2-124M";  // or "small": 6 layers, 6 heads, 384 wide, vocabulary 256
  int64_t batch = 4;                // sequences, global
  int64_t context = 64;             // tokens a sequence
  std::string dtype = "f32";        // of forward and backward: f32 or bf16
  std::string parallel = "none";    // one rank, or ddp, fsdp, tp over `ranks`
  int ranks = 2;                    // unless `parallel` is none
  int threads = 2;                  // of all ranks together, which share them evenly
  int64_t vocabulary = 0;           // 0: the model's own
  DeviceType device = DeviceType::kCpu;
  bool allow_tf32 = false;  // of products of f32 on a GPU

  bool operator==(const TrainRow&) const = default;

  // "gpt2-124M/4x64/f32/none".
  std::string Name() const;

  int num_ranks() const { return parallel == "none" ? 1 : ranks; }
  int64_t num_tokens() const { return batch * context; }

  // A rank is a thread, so this is 1 at least, even if that makes more than `threads`.
  //
  // Errors: InvalidArgument if there is no rank or no thread.
  int threads_per_rank() const;

  // How many cores of a machine that has `machine_cores` the ranks' threads keep busy.
  // Errors: as above.
  int num_cores(int machine_cores) const;

  // Errors: InvalidArgument for a model or dtype that is not one of those above.
  GptConfig Config() const;
  DType ComputeDType() const;
};

// The rows of --set=all: both shapes of GPT-2 124M and the small model, each on one rank of two threads and on
// two ranks of one thread.
std::vector<TrainRow> AllTrainRows();

struct MeasuredRow {
  std::vector<double> step_seconds;
  std::vector<double> exposed_fractions;
  int64_t tensor_bytes = 0;  // peak of a rank's allocator
  int64_t parameters = 0;

  double seconds() const;  // medians
  double exposed_fraction() const;
};

// Trains the row's model on random tokens: `warmup` steps, then `steps` that are measured. With a tracer, all
// are traced, and `*measured_from_ns` is the tracer's time when measuring began.
MeasuredRow MeasureRow(const TrainRow& row, int warmup, int steps, Tracer* tracer = nullptr,
                       int64_t* measured_from_ns = nullptr);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_TRAIN_ROW_H_
