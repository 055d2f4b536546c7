#ifndef WEFT_TESTS_RUNTIME_COMM_NCCL_NCCL_CALLS_H_
#define WEFT_TESTS_RUNTIME_COMM_NCCL_NCCL_CALLS_H_

// What tests of the nccl backend say of ranks, tensors and errors.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/launch/world.h"

namespace weft {

using Values = std::vector<float>;

inline std::vector<int> AllRanks(const World& world) {
  std::vector<int> ranks(world.size());
  for (int rank = 0; rank < world.size(); ++rank) ranks[rank] = rank;
  return ranks;
}

inline Tensor Of(World& world, const Values& values) {
  return Tensor::FromValues<float>({static_cast<int64_t>(values.size())}, values, world.allocator());
}

// The error of `call`, "" if it throws none.
template <class Call>
std::string ErrorOf(absl::StatusCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

inline void ExpectContains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// A call that waits for no other member; it throws, if the group has ended.
inline void SendToItself(World& world, Communicator& group) {
  group.SendRecv({{group.rank(), Of(world, {1})}}, {{group.rank(), Of(world, {0})}}).Wait();
}

// Ends with the group, in one way or another.
inline void BlockUntilItEnds(Communicator& group) {
  for (;;) group.Barrier();
}

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_NCCL_NCCL_CALLS_H_
