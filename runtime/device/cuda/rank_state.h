#ifndef WEFT_RUNTIME_DEVICE_CUDA_RANK_STATE_H_
#define WEFT_RUNTIME_DEVICE_CUDA_RANK_STATE_H_

#include <memory>
#include <vector>

namespace weft {

// What a rank keeps of one GPU besides memory: how its kernels are to compute, and what libraries keep for
// it, such as handles and plans. Nothing of it is shared between ranks.
//
// Threads: the rank's.
class CudaRankState {
 public:
  CudaRankState() = default;
  CudaRankState(const CudaRankState&) = delete;
  CudaRankState& operator=(const CudaRankState&) = delete;

  // Whether products of f32 may round their operands to 11 significant bits (tf32), which tensor cores take.
  bool allow_tf32() const { return allow_tf32_; }
  void set_allow_tf32(bool allow) { allow_tf32_ = allow; }

  // The rank's T, made by T() when it is first asked for; it lives as long as this.
  template <class T>
  T& Get() {
    for (const Entry& entry : entries_) {
      if (entry.key == &kKeyOf<T>) return *static_cast<T*>(entry.object.get());
    }
    entries_.push_back({&kKeyOf<T>, std::make_shared<T>()});
    return *static_cast<T*>(entries_.back().object.get());
  }

 private:
  // Its address stands for the type.
  template <class T>
  static constexpr char kKeyOf = 0;

  struct Entry {
    const char* key = nullptr;
    std::shared_ptr<void> object;
  };

  bool allow_tf32_ = false;
  std::vector<Entry> entries_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_RANK_STATE_H_
