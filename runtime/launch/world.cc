#include "runtime/launch/world.h"

#include <utility>

namespace weft {

World::World(int rank, int size, int num_threads, std::shared_ptr<Allocator> allocator, Tracer* tracer)
    : rank_(rank),
      size_(size),
      pool_(std::make_unique<ThreadPool>(num_threads)),
      allocator_(std::move(allocator)),
      tracer_(tracer) {}

}  // namespace weft
