#ifndef WEFT_OPS_CPU_INDEXING_ORDER_KEYS_H_
#define WEFT_OPS_CPU_INDEXING_ORDER_KEYS_H_

#include <bit>
#include <cstdint>
#include <type_traits>

namespace weft {

// Unsigned numbers in the order of elements: what sorting compares. C is float, double or an integer type.
template <class C>
using OrderKey = std::conditional_t<(sizeof(C) > 4), uint64_t, uint32_t>;

// Ascending: -inf to inf, then nan; -0 and 0 are equal.
template <class C>
OrderKey<C> AscendingKey(C x) {
  using Key = OrderKey<C>;
  constexpr Key kSign = Key{1} << (8 * sizeof(Key) - 1);
  if constexpr (std::is_floating_point_v<C>) {
    if (x != x) return ~Key{0};
    const Key bits = std::bit_cast<Key>(x == 0 ? C(0) : x);
    // Magnitudes of negative numbers grow downward.
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  } else {
    return static_cast<Key>(static_cast<std::make_signed_t<Key>>(x)) ^ kSign;
  }
}

// An element by its key, and where it stands. Of equal keys the lower index comes first, so there are no
// equals and every algorithm gives the same order.
template <class C>
struct Keyed {
  OrderKey<C> key;
  int64_t index;

  bool operator<(const Keyed& other) const {
    return key != other.key ? key < other.key : index < other.index;
  }
};

template <class C>
Keyed<C> MakeKeyed(C x, int64_t index, bool descending) {
  const OrderKey<C> key = AscendingKey(x);
  return {descending ? static_cast<OrderKey<C>>(~key) : key, index};
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_INDEXING_ORDER_KEYS_H_
