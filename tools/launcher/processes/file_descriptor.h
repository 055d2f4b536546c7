#ifndef WEFT_TOOLS_LAUNCHER_PROCESSES_FILE_DESCRIPTOR_H_
#define WEFT_TOOLS_LAUNCHER_PROCESSES_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace weft {

// Owns an open file of the system's, and closes it. Moves; -1 is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_PROCESSES_FILE_DESCRIPTOR_H_
