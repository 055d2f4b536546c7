#ifndef WEFT_TESTS_RUNTIME_STORE_CHILD_H_
#define WEFT_TESTS_RUNTIME_STORE_CHILD_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace weft {

// A process that a test starts by exec (gRPC forbids a fork without one), with pipes to its input and from
// its output. The destructor kills it.
//
// Errors: Internal from the constructor if it cannot be started; DeadlineExceeded from what waits.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  // The next line of its output without its end; "" at the output's end.
  std::string ReadLine(std::chrono::milliseconds timeout);

  pid_t pid() const { return pid_; }

  void CloseInput();
  void Signal(int signal) const;

  // Its exit code, or minus the signal that ended it.
  int Join(std::chrono::milliseconds timeout);

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string unread_;
};

// The program //tests/runtime/store:store_client, where Bazel has put it.
inline constexpr char kStoreClient[] = "tests/runtime/store/store_client";

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_STORE_CHILD_H_
