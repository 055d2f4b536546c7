// Files that are open for reading, no more than a process can have.

#ifndef WEFT_DTENSOR_CHECKPOINT_FILES_OPEN_FILES_H_
#define WEFT_DTENSOR_CHECKPOINT_FILES_OPEN_FILES_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "dtensor/checkpoint/files/files.h"

namespace weft {

// A sixteenth of the files that this process may have open (RLIMIT_NOFILE), 2 to 256: ranks that are threads read at once.
size_t MostOpenFiles();

// Opens files when they are asked for, and closes those that have not been for longest.
//
// Threads: one.
class OpenFiles {
 public:
  // `most`: how many stay open, at least 1.
  explicit OpenFiles(std::shared_ptr<Files> files, size_t most = MostOpenFiles());

  // The file, open as long as it is held.
  // Cost:   files that are open.
  // Errors: as Files::Open.
  std::shared_ptr<FileReader> Get(const std::string& path);

 private:
  const std::shared_ptr<Files> files_;
  const size_t most_;
  std::list<std::shared_ptr<FileReader>> open_;  // asked for last in front
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FILES_OPEN_FILES_H_
