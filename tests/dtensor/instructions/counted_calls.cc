// Calls one thing again and again, for valgrind's callgrind to count its instructions: see count_test.sh.
//
//   counted_calls CASE NUM_CALLS
//
// The calls to count run inside CountedCalls, which --toggle-collect names; before it, enough of them to fill
// the caches and the pools. Rank 0 of a mesh of two runs alone, on layouts that move nothing.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "runtime/launch/run_ranks.h"

// Keeps its name, whatever the compiler inlines.
extern "C" [[gnu::noinline]] void CountedCalls(const std::function<void()>& call, int64_t num_calls) {
  for (int64_t i = 0; i < num_calls; ++i) call();
}

namespace weft {
namespace {

// What a case calls, by its name.
std::map<std::string, std::function<void()>> Cases(const IntrusivePtr<MeshContext>& context) {
  const DTensor a = Full(context, DType::kF32, {32}, 0.5, Layout(1, 1).WithShard(0, 0));
  const DTensor b = Full(context, DType::kF32, {32}, 0.25, a.layout());
  const DTensor leaf = a.RequiresGrad();
  const DTensor x = Full(context, DType::kF32, {8, 4}, 0.5, Layout(2, 1).WithShard(0, 0));
  const DTensor w = Full(context, DType::kF32, {4, 4}, 0.5);
  const DTensor whole = Full(context, DType::kF32, {32}, 0.5);
  return {
      {"add", [=] { Add(a, b); }},
      {"add_recorded", [=] { Add(leaf, b); }},
      {"matmul", [=] { MatMul(x, w); }},
      {"redistribute", [=] { whole.Redistribute(a.layout()); }},
      {"chain_forward_backward",
       [=] {
         const DTensor fresh = a.RequiresGrad();
         Backward(Mul(Add(Mul(fresh, b), b), b), b);
       }},
  };
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  int64_t num_calls = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &num_calls)) {
    std::fprintf(stderr, "usage: counted_calls CASE NUM_CALLS\n");
    return 2;
  }
  bool found = false;
  weft::RunRanks(2, [&](weft::World& world) {
    if (world.rank() != 0) return;
    const auto cases = weft::Cases(weft::Bind(world, weft::DeviceMesh::Parse("a=2")));
    const auto named = cases.find(argv[1]);
    if (named == cases.end()) return;
    found = true;
    for (int i = 0; i < 20; ++i) named->second();
    CountedCalls(named->second, num_calls);
  });
  if (!found) std::fprintf(stderr, "counted_calls: no case '%s'\n", argv[1]);
  return found ? 0 : 2;
}
