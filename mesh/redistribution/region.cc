#include "mesh/redistribution/region.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace weft {

Region Region::From(const Shape& origin) const {
  Region region = *this;
  for (int dim = 0; dim < origin.ndim(); ++dim) region.offset[dim] -= origin[dim];
  return region;
}

Region Intersect(const Region& a, const Region& b) {
  Region both = a;
  for (int dim = 0; dim < a.shape.ndim(); ++dim) {
    const int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const int64_t end = std::min(a.offset[dim] + a.shape[dim], b.offset[dim] + b.shape[dim]);
    both.offset[dim] = begin;
    both.shape[dim] = end - begin;
    if (end <= begin) {
      for (int i = 0; i < a.shape.ndim(); ++i) both.shape[i] = 0;
      return both;
    }
  }
  return both;
}

bool LieInOrder(const Shape& whole, absl::Span<const Region> pieces) {
  int64_t next = 0;
  for (const Region& piece : pieces) {
    if (piece.empty()) continue;
    int64_t begin = 0;
    bool one_run = true;
    bool inside = false;  // of the outermost dim with more than one index
    for (int dim = 0; dim < whole.ndim(); ++dim) {
      begin = begin * whole[dim] + piece.offset[dim];
      one_run &= !inside || piece.shape[dim] == whole[dim];
      inside |= piece.shape[dim] > 1;
    }
    if (begin != next || !one_run) return false;
    next += piece.shape.num_elements();
  }
  return next == whole.num_elements();
}

// Members that lack part of a region are served in order. So what `member` sends follows from the members
// that lack part of its own region, and what it receives from those before it that lack part of the regions
// that it wants: only those are gone through member by member.
RegionExchange PlanRegionExchange(absl::Span<const Region> held, absl::Span<const Region> wanted,
                                  int member) {
  RegionExchange exchange;
  exchange.kept = Intersect(held[member], wanted[member]);
  absl::flat_hash_map<Shape, size_t> places;  // regions that are not empty differ in their offsets
  std::vector<std::vector<int>> holders;      // of what `member` holds or wants part of
  for (size_t i = 0; i < held.size(); ++i) {
    const bool concerns = held[i] == held[member] || !Intersect(held[i], wanted[member]).empty();
    if (held[i].empty() || !concerns) continue;
    const auto [place, is_new] = places.emplace(held[i].offset, holders.size());
    if (is_new) holders.emplace_back();
    holders[place->second].push_back(static_cast<int>(i));
  }
  for (const std::vector<int>& replicas : holders) {
    const Region& piece = held[replicas[0]];
    const bool is_own = piece == held[member];
    size_t turn = 0;
    // Of a piece that it does not hold, `member` needs to know its own turn alone; of one that nobody else
    // holds, whose turn it is does not matter.
    size_t receiver = !is_own && replicas.size() == 1 ? static_cast<size_t>(member) : 0;
    const size_t end = is_own ? wanted.size() : static_cast<size_t>(member) + 1;
    for (; receiver < end; ++receiver) {
      const Region region = Intersect(piece, wanted[receiver]);
      if (region.empty() || held[receiver] == piece) continue;
      const int sender = replicas[turn++ % replicas.size()];
      if (sender == member) exchange.sends.push_back({static_cast<int>(receiver), region});
      if (static_cast<int>(receiver) == member) exchange.receives.push_back({sender, region});
    }
  }
  return exchange;
}

std::ostream& operator<<(std::ostream& out, const Region& region) {
  return out << region.shape << " at " << region.offset;
}

}  // namespace weft
