// Nodes whose agents keep memory for snapshots: segments of this process.

#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_MEMORY_TEST_NODES_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_MEMORY_TEST_NODES_H_

#include <functional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/memory/snapshot_piece.h"
#include "runtime/launch/snapshot_memory.h"

namespace weft {

class TestNodes {
 public:
  TestNodes(int num_nodes, int ranks_per_node);
  ~TestNodes();
  TestNodes(const TestNodes&) = delete;
  TestNodes& operator=(const TestNodes&) = delete;

  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_ranks() const { return num_nodes() * ranks_per_node_; }
  SnapshotMemory MemoryOf(int rank) const;
  const std::string& PathOf(int node, int segment) const { return nodes_[node][segment]; }

  // The node's machine is gone: those behind it move up.
  void Lose(int node);
  // One that has nothing yet comes, as the last.
  void Add();

  // From now on the segment cannot grow.
  void Freeze(int node, int segment) const;

  // For each segment with a piece.
  void ForEach(const std::function<void(MemorySegment& segment, const SnapshotStamp& stamp, bool is_copy)>&
                   visit) const;
  // Bytes that all segments take.
  int64_t NumBytes() const;

 private:
  const int ranks_per_node_;
  std::vector<int> files_;
  std::vector<std::vector<std::string>> nodes_;
};

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_MEMORY_TEST_NODES_H_
