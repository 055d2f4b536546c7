// Datasets and doors that the loader's tests read.

#ifndef WEFT_TESTS_RUNTIME_DATA_LOADER_NUMBERS_H_
#define WEFT_TESTS_RUNTIME_DATA_LOADER_NUMBERS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/data/loader/loader.h"

namespace weft {

// Sample i is i, and its halves; `before_read` runs first.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t size, std::function<void(int64_t index)> before_read = nullptr)
      : size_(size), before_read_(std::move(before_read)) {}

  int64_t num_samples() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override {
    if (before_read_) before_read_(index);
    num_reads_.fetch_add(1);
    ElementsOf<int64_t>(fields[0])[0] = index;
    const absl::Span<float> halves = ElementsOf<float>(fields[1]);
    std::fill(halves.begin(), halves.end(), static_cast<float>(index) / 2);
  }
  std::string NameOf(int64_t index) const override { return absl::StrCat("'numbers.bin', record ", index); }

  int64_t num_reads() const { return num_reads_.load(); }

 private:
  const int64_t size_;
  const std::function<void(int64_t)> before_read_;
  const std::vector<SampleField> fields_ = {{.name = "number", .dtype = DType::kI64, .shape = {}},
                                            {.name = "halves", .dtype = DType::kF32, .shape = {2, 3}}};
  mutable std::atomic<int64_t> num_reads_ = 0;
};

// A door that reads wait at.
class Door {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --num_waiting_;
    changed_.notify_all();
  }
  void WaitUntil(const std::function<bool(int num_waiting)>& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition(num_waiting_); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int num_waiting_ = 0;
};

inline std::vector<int64_t> NumbersOf(const LoaderBatch& batch) {
  const std::vector<int64_t> numbers = batch.fields[0].ToVector<int64_t>();
  EXPECT_EQ(batch.fields[1].shape(), Shape({static_cast<int64_t>(numbers.size()), 2, 3}));
  const std::vector<float> halves = batch.fields[1].ToVector<float>();
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(halves[i], static_cast<float>(numbers[i / 6]) / 2);
  return numbers;
}

inline std::shared_ptr<const Sampler> Shuffled(int64_t n) {
  return std::make_shared<ShuffledSampler>(n, 1337);
}

// What comes at positions [first, end), by the sampler alone.
inline std::vector<int64_t> Expected(const Sampler& sampler, int64_t first, int64_t end) {
  std::vector<int64_t> samples;
  for (int64_t position = first; position < end; ++position) samples.push_back(sampler.AtPosition(position));
  return samples;
}

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_DATA_LOADER_NUMBERS_H_
