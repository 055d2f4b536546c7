#include "tests/dtensor/checkpoint/memory/test_nodes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>

namespace weft {

TestNodes::TestNodes(int num_nodes, int ranks_per_node) : ranks_per_node_(ranks_per_node) {
  for (int i = 0; i < num_nodes; ++i) Add();
}

TestNodes::~TestNodes() {
  for (const int file : files_) close(file);
}

SnapshotMemory TestNodes::MemoryOf(int rank) const {
  const int node = rank / ranks_per_node_;
  return {.paths = nodes_.at(node),
          .node = node,
          .local_rank = rank % ranks_per_node_,
          .local_size = ranks_per_node_};
}

void TestNodes::Lose(int node) { nodes_.erase(nodes_.begin() + node); }

void TestNodes::Add() {
  std::vector<std::string>& paths = nodes_.emplace_back();
  for (int i = 0; i < ranks_per_node_ * kSegmentsPerRank; ++i) {
    files_.push_back(memfd_create("snapshots_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    paths.push_back("/proc/self/fd/" + std::to_string(files_.back()));
  }
}

void TestNodes::Freeze(int node, int segment) const {
  const std::string& path = PathOf(node, segment);
  fcntl(std::stoi(path.substr(path.rfind('/') + 1)), F_ADD_SEALS, F_SEAL_GROW);
}

void TestNodes::ForEach(const std::function<void(MemorySegment& segment, const SnapshotStamp& stamp,
                                                 bool is_copy)>& visit) const {
  for (const std::vector<std::string>& paths : nodes_) {
    for (size_t i = 0; i < paths.size(); ++i) {
      MemorySegment segment(paths[i]);
      const std::optional<SnapshotStamp> stamp = ReadStamp(segment);
      if (stamp) visit(segment, *stamp, i % kSegmentsPerRank >= 2);
    }
  }
}

int64_t TestNodes::NumBytes() const {
  int64_t total = 0;
  for (const std::vector<std::string>& paths : nodes_) {
    for (const std::string& path : paths) total += MemorySegment(path).num_bytes();
  }
  return total;
}

}  // namespace weft
