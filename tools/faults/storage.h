#ifndef WEFT_TOOLS_FAULTS_STORAGE_H_
#define WEFT_TOOLS_FAULTS_STORAGE_H_

#include <filesystem>
#include <string>
#include <vector>

namespace weft {

// A file system of its own for one folder, which can be made full: a tmpfs in a mount namespace of this process, so that
// only this process and those that it starts see it, and nothing of it outlives them.
//
// Threads: the process has a single one when it is made; the kernel asks for that.
class SmallDisk {
 public:
  // Makes the folder, if there is none, and mounts the file system there.
  // Errors: FailedPrecondition, if the kernel refuses namespaces, the mount or another size of it, with its word: then this
  //         process is as it was.
  explicit SmallDisk(const std::string& folder);
  // The folder is as it was before.
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Leaves nothing free: whoever writes gets ENOSPC.
  void Fill();
  void Free();

 private:
  const std::string folder_;
};

// The folders of whole steps in a folder of checkpoints, the newest first.
std::vector<std::string> WholeSteps(const std::string& checkpoints);

// The names there of what is being written, and of what a killed rank has left until the next start.
std::vector<std::string> TemporaryNames(const std::string& checkpoints);

// When a name in a folder last came or went.
std::filesystem::file_time_type LastChangeOf(const std::string& folder);

// Flips a bit of an element of one file in the folder of a step: as far into its second half, where all bytes are elements, as
// `share` in [0, 1) says.
// Errors: NotFound, if there is no file of a rank.
void FlipBit(const std::string& step, double share);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_STORAGE_H_
