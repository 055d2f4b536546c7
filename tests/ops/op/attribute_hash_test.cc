#include "ops/op/attribute_hash.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "gtest/gtest.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {
namespace {

struct Empty {};

struct Inner {
  int dim = 0;
  std::array<int64_t, 2> pair = {0, 0};
};

struct Everything {
  Inner inner;
  bool flag = false;
  double number = 0;
  DType dtype = DType::kF32;
  Shape shape = {};
  TensorType type = {};
  absl::InlinedVector<int64_t, 4> list = {};
  int64_t last = 0;
};

// A field that says what of it counts: attributes of such types keep their own hash.
struct OwnHash {
  int counts = 0;
  int does_not = 0;
  template <class H>
  friend H AbslHashValue(H state, const OwnHash& own) {
    return H::combine(std::move(state), own.counts);
  }
};

TEST(AttributeHash, IsThatOfTheFieldsInOrder) {
  EXPECT_EQ(HashAttributesOf(Inner{.dim = 3, .pair = {4, 5}}), absl::HashOf(3, std::array<int64_t, 2>{4, 5}));
}

TEST(AttributeHash, EveryFieldCounts) {
  std::set<size_t> hashes = {HashAttributesOf(Everything())};
  int variants = 1;
  const auto vary = [&](auto change) {
    Everything varied;
    change(varied);
    hashes.insert(HashAttributesOf(varied));
    ++variants;
  };
  vary([](Everything& e) { e.inner.dim = 1; });
  vary([](Everything& e) { e.inner.pair[1] = 1; });
  vary([](Everything& e) { e.flag = true; });
  vary([](Everything& e) { e.number = 0.5; });
  vary([](Everything& e) { e.dtype = DType::kF64; });
  vary([](Everything& e) { e.shape = {2}; });
  vary([](Everything& e) { e.type.shape = {2, 3}; });
  vary([](Everything& e) { e.list = {0}; });
  vary([](Everything& e) { e.last = 1; });
  EXPECT_EQ(hashes.size(), variants);
  EXPECT_EQ(HashAttributesOf(Everything()), HashAttributesOf(Everything()));
}

TEST(AttributeHash, NoFieldsHaveOneHash) { EXPECT_EQ(HashAttributesOf(Empty()), HashAttributesOf(Empty())); }

TEST(AttributeHash, AnOwnHashIsTaken) {
  EXPECT_EQ(HashAttributesOf(OwnHash{.counts = 1, .does_not = 2}), absl::HashOf(OwnHash{.counts = 1}));
  EXPECT_NE(HashAttributesOf(OwnHash{.counts = 2, .does_not = 2}), absl::HashOf(OwnHash{.counts = 1}));
}

}  // namespace
}  // namespace weft
