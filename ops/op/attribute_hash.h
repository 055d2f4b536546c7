#ifndef WEFT_OPS_OP_ATTRIBUTE_HASH_H_
#define WEFT_OPS_OP_ATTRIBUTE_HASH_H_

#include <cstddef>
#include <type_traits>
#include <utility>

#include "absl/hash/hash.h"

namespace weft {

// The hash of a struct of static attributes, made of its fields, so that no struct writes one and none can
// forget a field.

namespace attribute_hash {

template <class T>
inline constexpr bool kHasHash = std::is_default_constructible_v<absl::Hash<T>>;

// Stands for a field of whatever type. Never defined: asked for in unevaluated places alone.
struct AnyField {
  template <class T>
  operator T() const;
};
template <size_t>
using AnyFieldAt = AnyField;

template <class A, size_t... i>
constexpr bool HasFields(std::index_sequence<i...>) {
  return requires { A{AnyFieldAt<i>()...}; };
}

// The number of fields is the longest list that initialises the aggregate: as in Boost.PFR, where the trick is
// from.
template <class A, size_t n>
constexpr size_t CountFields() {
  if constexpr (HasFields<A>(std::make_index_sequence<n>())) {
    return n;
  } else {
    return CountFields<A, n - 1>();
  }
}

inline constexpr size_t kMaxFields = 8;

template <class A>
struct Hashed;

// A field as Abseil hashes it: itself, or by its own fields.
template <class T>
decltype(auto) HashedField(const T& field) {
  if constexpr (kHasHash<T>) {
    return (field);
  } else {
    return Hashed<T>{field};
  }
}

template <class H, class... Fields>
H CombineFields(H state, const Fields&... fields) {
  return H::combine(std::move(state), HashedField(fields)...);
}

// Attributes with the hash of their fields, in order.
template <class A>
struct Hashed {
  const A& attributes;

  template <class H>
  friend H AbslHashValue(H state, const Hashed& hashed) {
    static_assert(std::is_aggregate_v<A>, "attributes are a plain struct, or have AbslHashValue");
    static_assert(!HasFields<A>(std::make_index_sequence<kMaxFields + 1>()), "too many attributes");
    constexpr size_t n = CountFields<A, kMaxFields>();
    const A& a = hashed.attributes;
    if constexpr (n == 0) {
      return state;
    } else if constexpr (n == 1) {
      const auto& [f0] = a;
      return CombineFields(std::move(state), f0);
    } else if constexpr (n == 2) {
      const auto& [f0, f1] = a;
      return CombineFields(std::move(state), f0, f1);
    } else if constexpr (n == 3) {
      const auto& [f0, f1, f2] = a;
      return CombineFields(std::move(state), f0, f1, f2);
    } else if constexpr (n == 4) {
      const auto& [f0, f1, f2, f3] = a;
      return CombineFields(std::move(state), f0, f1, f2, f3);
    } else if constexpr (n == 5) {
      const auto& [f0, f1, f2, f3, f4] = a;
      return CombineFields(std::move(state), f0, f1, f2, f3, f4);
    } else if constexpr (n == 6) {
      const auto& [f0, f1, f2, f3, f4, f5] = a;
      return CombineFields(std::move(state), f0, f1, f2, f3, f4, f5);
    } else if constexpr (n == 7) {
      const auto& [f0, f1, f2, f3, f4, f5, f6] = a;
      return CombineFields(std::move(state), f0, f1, f2, f3, f4, f5, f6);
    } else {
      const auto& [f0, f1, f2, f3, f4, f5, f6, f7] = a;
      return CombineFields(std::move(state), f0, f1, f2, f3, f4, f5, f6, f7);
    }
  }
};

}  // namespace attribute_hash

// The hash of `attributes`: by their own AbslHashValue if they have one, otherwise of their fields in order,
// and of their fields' fields.
//
// Shape: a plain struct without base classes, of at most 8 fields, none of them a built-in array.
template <class A>
size_t HashAttributesOf(const A& attributes) {
  if constexpr (attribute_hash::kHasHash<A>) {
    return absl::Hash<A>()(attributes);
  } else {
    using Hashed = attribute_hash::Hashed<A>;
    return absl::Hash<Hashed>()(Hashed{attributes});
  }
}

}  // namespace weft

#endif  // WEFT_OPS_OP_ATTRIBUTE_HASH_H_
