#ifndef WEFT_RUNTIME_COMM_LOCAL_MAILBOX_H_
#define WEFT_RUNTIME_COMM_LOCAL_MAILBOX_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

namespace weft {

// A message that waits for its receiver: where the sender's bytes lie, and what tells the sender that they
// have been copied. Views the sender's memory, which stays until `num_unread` has been counted down.
struct Parcel {
  int sender = 0;
  const void* data = nullptr;
  int64_t num_bytes = 0;
  std::atomic<bool>* read = nullptr;
};

// The parcels on their way to one member.
//
// Threads: Post from any sender's thread; Take from the receiver's.
class Mailbox {
 public:
  void Post(const Parcel& parcel) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      parcels_.push_back(parcel);
    }
    num_posted_.fetch_add(1);
  }

  // The oldest parcel of `sender`, if there is one.
  std::optional<Parcel> Take(int sender) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto parcel = parcels_.begin(); parcel != parcels_.end(); ++parcel) {
      if (parcel->sender != sender) continue;
      const Parcel taken = *parcel;
      parcels_.erase(parcel);
      return taken;
    }
    return std::nullopt;
  }

  // How many parcels were ever posted: a receiver that found none waits for this to move.
  uint64_t num_posted() const { return num_posted_.load(); }

 private:
  std::mutex mutex_;
  std::deque<Parcel> parcels_;
  std::atomic<uint64_t> num_posted_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_MAILBOX_H_
