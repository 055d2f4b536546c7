#ifndef WEFT_DTENSOR_CONTEXT_BOUNDED_CACHE_H_
#define WEFT_DTENSOR_CONTEXT_BOUNDED_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"

namespace weft {

// What a rank's caches count.
struct CacheStats {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evictions = 0;

  bool operator==(const CacheStats&) const = default;
};

// A bounded map from keys to what was worked out for them: at most `capacity` entries; when it is full, the
// one whose last use is longest ago goes. Values are shared: `Pointer` owns one together with whoever copies
// it (std::shared_ptr, IntrusivePtr), so what still runs keeps its value, whatever the cache drops.
//
// A hit is on the way of every cached call, so it only writes down its time: a list in the order of use would
// write to four entries. The misses make up the order, since each costs far more anyway. A heap holds the
// entries by the uses it knows of; if the entry at its top has been used since, it goes back with its new
// time. An entry that comes to the top unused since is the oldest of all.
//
// Threads: no locks; the owning rank's thread only.
template <class Key, class Pointer, class Hash = typename absl::node_hash_map<Key, int>::hasher,
          class Equal = typename absl::node_hash_map<Key, int>::key_equal>
class BoundedCache {
 public:
  // Needs capacity >= 1.
  explicit BoundedCache(int64_t capacity) : capacity_(capacity) {}
  // The heap points to entries, which stay where they are when the map moves.
  BoundedCache(BoundedCache&&) = default;
  BoundedCache& operator=(BoundedCache&&) = default;

  // The value of an equal key, or null. The reference holds until the next Insert; a copy keeps the value.
  template <class AnyKey = Key>
  const Pointer& Find(const AnyKey& key) {
    const auto it = entries_.find(key);
    if (it == entries_.end()) [[unlikely]] {
      ++stats_.misses;
      return none_;
    }
    ++stats_.hits;
    it->second.last_use = ++now_;
    return it->second.value;
  }

  // Replaces the value of an equal key.
  const Pointer& Insert(Key key, Pointer value) {
    if (const auto it = entries_.find(key); it != entries_.end()) {
      it->second = {++now_, std::move(value)};
      return it->second.value;
    }
    if (size() >= capacity_) EvictOldest();
    Node& node = *entries_.try_emplace(std::move(key), Entry{++now_, std::move(value)}).first;
    by_use_.push_back({node.second.last_use, &node});
    std::push_heap(by_use_.begin(), by_use_.end(), std::greater<>());
    return node.second.value;
  }

  const CacheStats& stats() const { return stats_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t capacity() const { return capacity_; }

 private:
  struct Entry {
    uint64_t last_use = 0;
    Pointer value;
  };
  using Map = absl::node_hash_map<Key, Entry, Hash, Equal>;
  using Node = typename Map::value_type;
  // Of each entry one, its last use no later than the entry's.
  struct KnownUse {
    uint64_t last_use = 0;
    Node* node = nullptr;
    bool operator>(const KnownUse& other) const { return last_use > other.last_use; }
  };

  void EvictOldest() {
    while (true) {
      std::pop_heap(by_use_.begin(), by_use_.end(), std::greater<>());
      KnownUse& oldest = by_use_.back();
      if (oldest.last_use == oldest.node->second.last_use) break;
      oldest.last_use = oldest.node->second.last_use;
      std::push_heap(by_use_.begin(), by_use_.end(), std::greater<>());
    }
    entries_.erase(entries_.find(by_use_.back().node->first));
    by_use_.pop_back();
    ++stats_.evictions;
  }

  int64_t capacity_;
  uint64_t now_ = 0;  // counts uses
  CacheStats stats_;
  Pointer none_ = nullptr;
  Map entries_;
  std::vector<KnownUse> by_use_;  // a heap, the oldest at its front
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_BOUNDED_CACHE_H_
