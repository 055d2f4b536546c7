#include "runtime/comm/gather_texts.h"

#include <cstdint>
#include <numeric>

#include "runtime/tensor/tensor.h"

namespace weft {

std::vector<std::string> AllGatherTexts(Communicator& group, const std::string& mine,
                                        const std::shared_ptr<Allocator>& allocator,
                                        const CommOptions& options) {
  const Tensor lengths = Tensor::Empty(allocator, DType::kI64, {group.size()});
  group
      .AllGather(Tensor::FromValues<int64_t>({1}, {std::ssize(mine)}, allocator), lengths,
                 std::vector<int64_t>(group.size(), 1), options)
      .Wait();
  const std::vector<int64_t> counts = lengths.ToVector<int64_t>();
  const std::vector<uint8_t> bytes(mine.begin(), mine.end());
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor all = Tensor::Empty(allocator, DType::kU8, {total});
  group.AllGather(Tensor::FromValues<uint8_t>({std::ssize(bytes)}, bytes, allocator), all, counts, options)
      .Wait();
  const std::vector<uint8_t> joined = all.ToVector<uint8_t>();
  std::vector<std::string> texts;
  auto next = joined.begin();
  for (const int64_t count : counts) {
    texts.emplace_back(next, next + count);
    next += count;
  }
  return texts;
}

}  // namespace weft
