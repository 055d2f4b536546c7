#ifndef WEFT_TESTS_EVERY_OPERATOR_NEW_H_
#define WEFT_TESTS_EVERY_OPERATOR_NEW_H_

#include <cstddef>
#include <cstdlib>
#include <new>

// Defines every form of operator new and delete, for a test that watches what is taken from the heap. One source of a program
// includes it.

// The test defines it: called before each allocation, it may count it, or throw std::bad_alloc.
void BeforeAllocation();

namespace weft {

inline void* AllocateAligned(std::size_t num_bytes, std::size_t alignment) {
  BeforeAllocation();
  // aligned_alloc wants a multiple of the alignment.
  void* const block = std::aligned_alloc(alignment, (num_bytes + alignment) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// Out of line: a compiler that saw free() in operator delete and not what operator new calls would warn.
[[gnu::noinline]] inline void FreeBlock(void* block) { std::free(block); }

}  // namespace weft

// All forms: a sanitizer's own would otherwise stand beside these, and each pair must be of one kind.
void* operator new(std::size_t num_bytes) {
  return weft::AllocateAligned(num_bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t num_bytes) { return operator new(num_bytes); }
void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept { return operator new(num_bytes); }
void* operator new[](std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return operator new(num_bytes);
}
void* operator new(std::size_t num_bytes, std::align_val_t alignment) {
  return weft::AllocateAligned(num_bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t num_bytes, std::align_val_t alignment) {
  return operator new(num_bytes, alignment);
}
void* operator new(std::size_t num_bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(num_bytes, alignment);
}
void* operator new[](std::size_t num_bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(num_bytes, alignment);
}
void operator delete(void* block) noexcept { weft::FreeBlock(block); }
void operator delete[](void* block) noexcept { weft::FreeBlock(block); }
void operator delete(void* block, std::size_t) noexcept { weft::FreeBlock(block); }
void operator delete[](void* block, std::size_t) noexcept { weft::FreeBlock(block); }
void operator delete(void* block, std::align_val_t) noexcept { weft::FreeBlock(block); }
void operator delete[](void* block, std::align_val_t) noexcept { weft::FreeBlock(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { weft::FreeBlock(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { weft::FreeBlock(block); }

#endif  // WEFT_TESTS_EVERY_OPERATOR_NEW_H_
