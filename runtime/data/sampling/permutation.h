// A random order of n things, without a list of them.

#ifndef WEFT_RUNTIME_DATA_SAMPLING_PERMUTATION_H_
#define WEFT_RUNTIME_DATA_SAMPLING_PERMUTATION_H_

#include <cstdint>

#include "runtime/base/random_key.h"

namespace weft {

// A permutation of [0, size) as a pure function of its key: At(i) is where i goes. A value of a few words, whatever the
// size, so that an epoch of 10^12 samples needs no memory and begins anywhere.
//
// It is a Feistel network over the least power of two that holds the size, and at least 2^kLeastBits; its round functions
// are Philox's words. What falls beyond the size goes through the network again (cycle walking), which keeps the map a
// bijection. Part of the golden random values: tests/runtime/data/sampling/permutation_test.cc has its hashes.
//
// Cost:   kRounds Philox blocks per walk. Fewer than two walks on average from 2^(kLeastBits - 1) on, and
//         2^kLeastBits / size below.
// Source: Luby and Rackoff, "How to construct pseudorandom permutations", SIAM J. Computing 17 (1988); cycle walking: Black
//         and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
class Permutation {
 public:
  // Small sizes go through a larger network: one of few bits reaches even permutations alone.
  static constexpr int kLeastBits = 6;
  static constexpr int kRounds = 12;

  // `key`: seed, what the order is for (its stream), and which of many it is (its step: the epoch).
  // Errors: InvalidArgument for a size below 1 or above 2^62, or a step of 2^32 or more.
  Permutation(int64_t size, const RandomKey& key);

  int64_t size() const { return size_; }

  // Where `i` goes.
  // Errors: InvalidArgument for an i outside [0, size()).
  int64_t At(int64_t i) const;

 private:
  uint64_t Walk(uint64_t i) const;

  int64_t size_;
  RandomKey key_;
  int left_bits_;   // of the two halves that a round swaps
  int right_bits_;  // as many, or one more
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_SAMPLING_PERMUTATION_H_
