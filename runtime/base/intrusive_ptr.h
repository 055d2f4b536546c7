#ifndef WEFT_RUNTIME_BASE_INTRUSIVE_PTR_H_
#define WEFT_RUNTIME_BASE_INTRUSIVE_PTR_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace weft {

// Base of objects that count their own owners. `T` derives from RefCounted<T>; the last IntrusivePtr calls
// `delete`. The count is atomic: a collective of another rank's thread may hold the last reference.
template <class T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  // Owners at this moment. 1 means that the asking owner alone holds the object, so it may be written in
  // place.
  int64_t use_count() const { return count_.load(std::memory_order_acquire); }

 protected:
  ~RefCounted() = default;

 private:
  template <class U>
  friend class IntrusivePtr;
  mutable std::atomic<int64_t> count_{0};
};

// Shares ownership of a RefCounted object; one word; `==` compares identity.
template <class T>
class IntrusivePtr {
 public:
  IntrusivePtr() = default;
  IntrusivePtr(std::nullptr_t) {}
  explicit IntrusivePtr(T* object) : object_(object) { Acquire(); }
  IntrusivePtr(const IntrusivePtr& other) : object_(other.object_) { Acquire(); }
  IntrusivePtr(IntrusivePtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ~IntrusivePtr() { Release(); }
  IntrusivePtr& operator=(IntrusivePtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const IntrusivePtr& other) const { return object_ == other.object_; }

 private:
  void Acquire() {
    if (object_ != nullptr) object_->count_.fetch_add(1, std::memory_order_relaxed);
  }
  void Release() {
    if (object_ == nullptr) return;
    // The only owner need not tell others: a load costs a tenth of a locked subtraction.
    if (object_->count_.load(std::memory_order_acquire) == 1 ||
        object_->count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete object_;
    }
  }

  T* object_ = nullptr;
};

template <class T, class... Args>
IntrusivePtr<T> MakeIntrusive(Args&&... args) {
  return IntrusivePtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_INTRUSIVE_PTR_H_
