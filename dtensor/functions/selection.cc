#include "dtensor/functions/selection.h"

#include <vector>

#include "dtensor/dispatch.h"
#include "dtensor/functions/compare.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/implicit_move.h"
#include "dtensor/functions/indexing.h"
#include "dtensor/functions/reduce.h"
#include "dtensor/functions/select.h"
#include "dtensor/functions/shape.h"
#include "dtensor/functions/sort.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "ops/indexing/gather.h"

namespace weft {
namespace {

void RequireCapacity(absl::string_view what, const Capacity& capacity) {
  WEFT_REQUIRE(capacity.extent >= 0, what, ": expected a capacity of at least 0, got ", capacity.extent);
}

// 0, 1, ... n - 1, laid as x, of one dim and not Partial, is.
DTensor PlacesOf(const DTensor& x) {
  return Arange(x.context(), DType::kI64, 0, static_cast<double>(x.shape()[0]), 1, x.layout());
}

// Reduced now: what several calls read, each would reduce by itself.
DTensor Settled(absl::string_view function, absl::string_view what, const DTensor& x) {
  return MoveImplicitly(function, what, x, WithoutPartial(x.layout()));
}

// The sum of the src that go to each slot of `extent`; what lies beyond is dropped.
DTensor PutAt(absl::string_view function, const DTensor& slots, const DTensor& src, int64_t extent) {
  const DTensor kept = Minimum(slots, static_cast<double>(extent));
  const DTensor sums = Call(kScatterSum, {kept, src}, {.dim = 0, .extent = extent + 1});
  return Settled(function, "what is selected", Slice(sums, 0, 0, extent));
}

// The places at which flags [n] hold, in order.
struct Compacted {
  DTensor places;   // i64 [capacity]; 0 beyond the count
  DTensor is_used;  // bool [capacity]
  DTensor count;    // i64
};

Compacted Compact(absl::string_view function, const DTensor& flags, int64_t extent) {
  const DTensor ones = Convert(flags, DType::kI64);
  const DTensor slots = Where(flags, Sub(CumSum(ones, 0), 1), static_cast<double>(extent));
  Compacted result;
  result.places = PutAt(function, slots, PlacesOf(ones), extent);
  result.count = Settled(function, "the count", Sum(ones));
  const DTensor numbers = Arange(flags.context(), DType::kI64, 0, static_cast<double>(extent));
  result.is_used = Less(numbers, result.count);
  return result;
}

// x at the places, `fill` beyond them; x [n].
DTensor TakeUsed(const DTensor& x, const Compacted& found, double fill) {
  const DTensor beyond = NumberLike(x, fill);
  // No place is a place of nothing.
  if (x.shape()[0] == 0) return Full(x.context(), x.dtype(), found.places.shape(), fill);
  return Where(found.is_used, IndexSelect(x, 0, found.places), beyond);
}

int64_t HostCount(const DTensor& flags) {
  return static_cast<int64_t>(Sum(Convert(flags, DType::kI64)).Item());
}

DTensor FlatMask(const DTensor& x, const DTensor& mask) {
  WEFT_REQUIRE(mask.dtype() == DType::kBool, "MaskedSelect: expected a bool mask, got ", mask.ToString());
  if (mask.shape() == x.shape()) return Flatten(mask);
  const DTensor all = Convert(OnesLike(x), DType::kBool);
  const DTensor broadcast = LogicalAnd(mask, all);
  WEFT_REQUIRE(broadcast.shape() == x.shape(), "MaskedSelect: ", mask.ToString(), " does not broadcast to ",
               x.ToString());
  return Flatten(broadcast);
}

// Row-major places, as one index per dim of `shape`: [capacity, ndim]. By quotients in f64, which are exact
// below 2^53 elements, since integers do not divide.
DTensor IndicesOf(const Compacted& found, const Shape& shape, double fill) {
  const int64_t extent = found.places.shape()[0];
  if (shape.ndim() == 0) return Zeros(found.places.context(), DType::kI64, {extent, 0});
  std::vector<DTensor> indices;
  DTensor rest = found.places;
  int64_t inner = shape.num_elements();
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    inner = shape[dim] == 0 ? 1 : inner / shape[dim];
    const auto stride = static_cast<double>(inner == 0 ? 1 : inner);
    const DTensor index = Convert(Div(Convert(rest, DType::kF64), stride), DType::kI64);
    rest = Sub(rest, Scale(index, stride));
    indices.push_back(Where(found.is_used, index, fill));
  }
  return Stack(indices, 1);
}

DTensor FlatFlags(const DTensor& x) { return Flatten(Convert(x, DType::kBool)); }

// Of x in order: whether each element is the first of its value.
DTensor IsFirst(const DTensor& sorted) {
  const int64_t n = sorted.shape()[0];
  if (n == 0) return Full(sorted.context(), DType::kBool, {0}, 1);
  const DTensor first = Full(sorted.context(), DType::kBool, {1}, 1);
  return Concat({first, NotEqual(Slice(sorted, 0, 1, n - 1), Slice(sorted, 0, 0, n - 1))}, 0);
}

UniqueElements UniqueOf(const DTensor& x, const SortedElements& sorted, const DTensor& is_first,
                        const Capacity& capacity) {
  const Compacted found = Compact("Unique", is_first, capacity.extent);
  const DTensor ones = Convert(is_first, DType::kI64);
  const DTensor group = Sub(CumSum(ones, 0), 1);
  const int64_t n = sorted.values.shape()[0];
  UniqueElements result;
  result.values = TakeUsed(sorted.values, found, capacity.fill);
  result.inverse = Reshape(PutAt("Unique", sorted.indices, group, n), x.shape());
  result.counts = PutAt("Unique", group, OnesLike(group), capacity.extent);
  result.count = found.count;
  return result;
}

}  // namespace

SelectedElements MaskedSelect(const DTensor& x, const DTensor& mask, const Capacity& capacity) {
  RequireCapacity("MaskedSelect", capacity);
  const Compacted found = Compact("MaskedSelect", FlatMask(x, mask), capacity.extent);
  return {.values = TakeUsed(Flatten(x), found, capacity.fill), .count = found.count};
}

DTensor MaskedSelect(const DTensor& x, const DTensor& mask) {
  return MaskedSelect(x, mask, {.extent = HostCount(FlatMask(x, mask))}).values;
}

SelectedElements NonZero(const DTensor& x, const Capacity& capacity) {
  RequireCapacity("NonZero", capacity);
  const Compacted found = Compact("NonZero", FlatFlags(x), capacity.extent);
  return {.values = IndicesOf(found, x.shape(), capacity.fill), .count = found.count};
}

DTensor NonZero(const DTensor& x) { return NonZero(x, {.extent = HostCount(FlatFlags(x))}).values; }

UniqueElements Unique(const DTensor& x, const Capacity& capacity) {
  RequireCapacity("Unique", capacity);
  const SortedElements sorted = Sort(Flatten(x.Detach()), 0);
  return UniqueOf(x, sorted, IsFirst(sorted.values), capacity);
}

UniqueElements Unique(const DTensor& x) {
  const SortedElements sorted = Sort(Flatten(x.Detach()), 0);
  const DTensor is_first = IsFirst(sorted.values);
  return UniqueOf(x, sorted, is_first, {.extent = HostCount(is_first)});
}

}  // namespace weft
