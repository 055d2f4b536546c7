#ifndef WEFT_DTENSOR_CONTEXT_CALL_KEY_H_
#define WEFT_DTENSOR_CONTEXT_CALL_KEY_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "mesh/layout.h"
#include "ops/op/op.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What decides how a call runs: the op, its static attributes, its operands' types and layouts, and the
// wanted layout of its first output, if there is one. All but the attributes lie flat, as integers: a key is
// made, hashed and compared without looking at what they mean, and without the heap for as many operands as
// ops have names for.
//
// Lifetime: borrows the op and the attributes.
class CallKey {
 public:
  CallKey(const OpDef& op, const void* attributes, const Layout* like = nullptr)
      : op_(&op), attributes_(attributes) {
    if (like == nullptr) {
      Push(kNoLike);
    } else {
      PushLayout(*like);
    }
  }

  void AddOperand(const TensorType& type, const Layout& layout) {
    Push(static_cast<uint64_t>(type.dtype) << 32 | static_cast<uint64_t>(type.ndim()));
    PushLayout(layout);
    for (const int64_t extent : type.shape) Push(static_cast<uint64_t>(extent));
  }

  const OpDef& op() const { return *op_; }
  const void* attributes() const { return attributes_; }
  absl::Span<const uint64_t> words() const {
    return many_.empty() ? absl::MakeConstSpan(few_.data(), num_few_) : absl::MakeConstSpan(many_);
  }

  size_t Hash() const {
    const absl::Span<const uint64_t> all = words();
    uint64_t hash = Mix(reinterpret_cast<uintptr_t>(op_), op_->HashAttributes(attributes_) ^ all.size());
    size_t i = 0;
    for (; i + 1 < all.size(); i += 2) hash = Mix(hash ^ all[i], all[i + 1]);
    if (i < all.size()) hash = Mix(hash ^ all[i], 0);
    return hash;
  }

  // Whether the key of these would be the same.
  bool Equals(const OpDef& op, const void* attributes, absl::Span<const uint64_t> other_words) const {
    const absl::Span<const uint64_t> own = words();
    if (op_ != &op || own.size() != other_words.size()) return false;
    uint64_t difference = 0;
    for (size_t i = 0; i < own.size(); ++i) difference |= own[i] ^ other_words[i];
    return difference == 0 && op.EqualAttributes(attributes_, attributes);
  }

 private:
  static constexpr size_t kFew = 48;                 // eight operands of three dims
  static constexpr uint64_t kNoLike = ~uint64_t{0};  // no layout's first word: no axis is of kind 3

  // Both halves of a product, folded: every bit of a and b takes part in every bit of the result.
  static uint64_t Mix(uint64_t a, uint64_t b) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd6e8feb86659fd93u);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  void PushLayout(const Layout& layout) {
    for (const uint64_t word : std::bit_cast<std::array<uint64_t, 2>>(layout)) Push(word);
  }
  void Push(uint64_t word) {
    if (num_few_ < kFew) {
      few_[num_few_++] = word;
      return;
    }
    if (many_.empty()) many_.assign(few_.begin(), few_.end());
    many_.push_back(word);
  }

  const OpDef* op_;
  const void* attributes_;
  size_t num_few_ = 0;
  std::array<uint64_t, kFew> few_;  // the words, as far as they fit: left uninitialised
  std::vector<uint64_t> many_;      // else all of them
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_CALL_KEY_H_
