// Whether another job saves into a folder.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_FOLDER_LOCK_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_FOLDER_LOCK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dtensor/checkpoint/files/files.h"

namespace weft {

// Rank 0's hold on the file `.lock` of a folder, as long as the object lives. It stands in nobody's way: without it a job
// leaves what another one may be writing, and that is all. The system lets go of it when the process ends, so nothing of a
// job that was killed is taken for another job's.
//
// Lifetime: views `files`.
class FolderLock {
 public:
  // `run_id`, `generation`: of the job, and which of its lives this is, by which it knows an earlier one; empty: it has none.
  // `patience`: how long it waits for a holder, which may be ending.
  FolderLock(Files& files, const std::string& folder, const std::string& run_id, int64_t generation,
             std::chrono::milliseconds patience = std::chrono::seconds(2));

  // The other holder, for people to read; empty: nobody, or an earlier life of this job, which is ending.
  const std::string& other() const { return other_; }

  // Takes the hold, if another one had it that has ended since. Waits for nobody.
  void Retake();

 private:
  Files& files_;
  const std::string path_;
  const std::string text_;  // that it writes
  std::unique_ptr<FileLock> lock_;
  std::string other_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_FOLDER_LOCK_H_
