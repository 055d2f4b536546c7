#include "dtensor/checkpoint/box_read.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/crc32c.h"

namespace weft {
namespace {

// A call costs about as much as 16 KiB of a fast disk; a scratch of 4 MiB stays in cache for the copy out of it.
constexpr int64_t kLargestGap = 16 << 10;
constexpr int64_t kLargestSpan = 4 << 20;

// Reads runs of bytes in ascending order, near ones together.
class RunReader {
 public:
  RunReader(FileReader& file, bool with_crc) : file_(file), with_crc_(with_crc) {}

  void Read(int64_t from, char* to, int64_t num_bytes) {
    const bool joins =
        !runs_.empty() && from - end_ <= kLargestGap && from + num_bytes - begin_ <= kLargestSpan;
    if (!joins) Flush();
    if (runs_.empty()) begin_ = from;
    end_ = from + num_bytes;
    runs_.push_back({from, to, num_bytes});
  }

  void Flush() {
    if (runs_.size() == 1) {
      ReadAll(file_, begin_, runs_[0].to, runs_[0].num_bytes);
    } else if (!runs_.empty()) {
      scratch_.resize(static_cast<size_t>(end_ - begin_));
      ReadAll(file_, begin_, scratch_.data(), end_ - begin_);
      for (const Run& run : runs_) std::memcpy(run.to, scratch_.data() + (run.from - begin_), run.num_bytes);
    }
    for (const Run& run : runs_) {
      if (with_crc_) crc_ = Crc32c(run.to, run.num_bytes, crc_);
    }
    runs_.clear();
  }

  uint32_t crc() const { return crc_; }

 private:
  struct Run {
    int64_t from = 0;
    char* to = nullptr;
    int64_t num_bytes = 0;
  };

  FileReader& file_;
  const bool with_crc_;
  std::vector<Run> runs_;
  std::vector<char> scratch_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  uint32_t crc_ = 0;
};

// The number of the element at `index` of `inner`, which lies in `outer`, counted from the first of `outer`.
int64_t Position(const Region& outer, const Region& inner, const Shape& index) {
  int64_t position = 0;
  for (int dim = 0; dim < outer.shape.ndim(); ++dim) {
    position = position * outer.shape[dim] + inner.offset[dim] - outer.offset[dim] + index[dim];
  }
  return position;
}

}  // namespace

std::optional<uint32_t> ReadShared(FileReader& file, const StoredBox& stored, const Region& wanted,
                                   char* out) {
  const Region shared = Intersect(stored.region, wanted);
  if (shared.empty()) return std::nullopt;
  // Runs that are contiguous on both sides: dims from `first` on, of which only the first may be a part.
  int first = shared.shape.ndim();
  const auto is_whole = [&](int dim) {
    return shared.shape[dim] == stored.region.shape[dim] && shared.shape[dim] == wanted.shape[dim];
  };
  while (first > 0 && is_whole(first - 1)) --first;
  first = std::max(0, first - 1);
  int64_t run = stored.item_size;
  for (int dim = first; dim < shared.shape.ndim(); ++dim) run *= shared.shape[dim];
  const bool all_is_wanted = shared.shape == stored.region.shape;
  RunReader reader(file, all_is_wanted);
  Shape index = shared.shape;
  for (int dim = 0; dim < index.ndim(); ++dim) index[dim] = 0;
  const int64_t num_runs = shared.shape.num_elements() * stored.item_size / run;
  for (int64_t i = 0; i < num_runs; ++i) {
    reader.Read(stored.file_offset + Position(stored.region, shared, index) * stored.item_size,
                out + Position(wanted, shared, index) * stored.item_size, run);
    for (int dim = first - 1; dim >= 0 && ++index[dim] == shared.shape[dim]; --dim) index[dim] = 0;
  }
  reader.Flush();
  return all_is_wanted ? std::optional<uint32_t>(reader.crc()) : std::nullopt;
}

}  // namespace weft
