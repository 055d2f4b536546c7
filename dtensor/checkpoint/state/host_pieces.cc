#include "dtensor/checkpoint/state/host_pieces.h"

#include <algorithm>
#include <cstring>

#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// What a thread copies at once: large enough that taking a part costs nothing, small enough that threads end together.
constexpr int64_t kPart = 1 << 20;

struct Part {
  const char* from = nullptr;
  char* to = nullptr;
  int64_t num_bytes = 0;
};

}  // namespace

HostPieces::HostPieces() : allocator_(MakeCpuAllocator()) {}

std::vector<Tensor> HostPieces::Copy(const std::vector<std::pair<std::string, Tensor>>& pieces,
                                     ThreadPool& pool) {
  std::map<std::string, Tensor> before = std::move(copies_);
  copies_.clear();
  std::vector<Tensor> result;
  std::vector<Part> parts;
  for (const auto& [name, piece] : pieces) {
    const auto known = before.find(name);
    const bool fits = known != before.end() && known->second.dtype() == piece.dtype() &&
                      known->second.shape() == piece.shape();
    const Tensor copy = fits ? known->second : Tensor::Empty(allocator_, piece.dtype(), piece.shape());
    copies_[name] = copy;
    result.push_back(copy);
    if (!piece.IsContiguous() || piece.device().type != DeviceType::kCpu) {
      CopyTensor(piece, copy);
      continue;
    }
    for (int64_t done = 0; done < piece.num_bytes(); done += kPart) {
      parts.push_back({static_cast<const char*>(piece.data()) + done, static_cast<char*>(copy.data()) + done,
                       std::min(kPart, piece.num_bytes() - done)});
    }
  }
  pool.Run(std::ssize(parts), [&](int64_t i) {
    std::memcpy(parts[i].to, parts[i].from, static_cast<size_t>(parts[i].num_bytes));
  });
  return result;
}

int64_t HostPieces::num_bytes() const {
  int64_t total = 0;
  for (const auto& [name, copy] : copies_) total += copy.num_bytes();
  return total;
}

}  // namespace weft
