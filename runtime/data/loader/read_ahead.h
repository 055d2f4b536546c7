// The threads of a Loader: they read samples into memory that others have prepared.

#ifndef WEFT_RUNTIME_DATA_LOADER_READ_AHEAD_H_
#define WEFT_RUNTIME_DATA_LOADER_READ_AHEAD_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/data/dataset/dataset.h"
#include "runtime/data/sampling/sampler.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// What is to be read: rows, each a sample, into the rows of tensors. Made by whoever consumes it, filled by ReadAhead.
struct ReadJob {
  std::vector<int64_t> positions;  // of each row in the sampler's sequence
  std::vector<Tensor> fields;      // [rows, ...] per field of the dataset, row-major, on the host
};

// Reads jobs in the order in which they come, some rows at a time, so that all threads work on the first job before the
// next. Holds no more jobs than it is given.
//
// What its threads touch is owned by them too. So the destructor waits for the reads that are under way no longer than a
// second (or `patience`, if that is less), and leaves a thread that is stuck in one behind, which ends when its read does.
//
// Threads: its owner's.
class ReadAhead {
 public:
  // `num_threads`: 0 for none; Wait then reads.
  // Errors: ResourceExhausted if the system gives no thread.
  ReadAhead(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler, int num_threads,
            std::chrono::milliseconds patience);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  class Ticket;

  // Begins to read.
  std::shared_ptr<Ticket> Submit(ReadJob job);
  // The job, if all its rows are there; otherwise null, also if some could not be read. Does not wait.
  const ReadJob* IfDone(const Ticket& ticket) const;
  // The job, when all its rows are there.
  // Errors: of the first row that could not be read: its own code, and a message that names the sample, its epoch, file and
  //         record (Dataset::NameOf). DeadlineExceeded after `patience`, naming the first row that is not there. Wait again
  //         reads the rows that failed again, or goes on waiting.
  const ReadJob& Wait(const std::shared_ptr<Ticket>& ticket);
  // Forgets all jobs. Reads that are under way end by themselves.
  void Clear();

 private:
  struct Shared;
  static void Work(std::shared_ptr<Shared> shared, int thread);
  void Stop() noexcept;
  void Reopen(const std::shared_ptr<Ticket>& ticket);

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_LOADER_READ_AHEAD_H_
