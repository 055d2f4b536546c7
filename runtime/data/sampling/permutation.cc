#include "runtime/data/sampling/permutation.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

static_assert(Permutation::kRounds % 2 == 0,
              "halves of unequal size are back in their places after an even number");

uint64_t Low(uint64_t word, int bits) { return word & ((uint64_t{1} << bits) - 1); }

}  // namespace

Permutation::Permutation(int64_t size, const RandomKey& key) : size_(size), key_(key) {
  WEFT_REQUIRE(size >= 1 && size <= int64_t{1} << 62, "permutation: size: expected 1 to 2^62, got ", size);
  WEFT_REQUIRE(key.step <= 0xffffffffu, "permutation: step ", key.step, " is not below 2^32");
  const int bits = std::max<int>(kLeastBits, std::bit_width(static_cast<uint64_t>(size) - 1));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

uint64_t Permutation::Walk(uint64_t i) const {
  uint64_t left = i >> right_bits_;
  uint64_t right = Low(i, right_bits_);
  int left_bits = left_bits_, right_bits = right_bits_;
  for (uint64_t round = 0; round < kRounds; ++round) {
    // A half has at most 31 bits: the round's number lies above it.
    left ^= Low(RandomWords(key_, round << 32 | right)[0], left_bits);
    std::swap(left, right);
    std::swap(left_bits, right_bits);
  }
  return left << right_bits_ | right;
}

int64_t Permutation::At(int64_t i) const {
  WEFT_REQUIRE(i >= 0 && i < size_, "permutation: ", i, " is not within [0, ", size_, ")");
  uint64_t at = static_cast<uint64_t>(i);
  // The walk from i returns to i, which is below the size: it ends.
  do {
    at = Walk(at);
  } while (at >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(at);
}

}  // namespace weft
