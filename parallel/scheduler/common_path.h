// The module that several parameters have in common.

#ifndef WEFT_PARALLEL_SCHEDULER_COMMON_PATH_H_
#define WEFT_PARALLEL_SCHEDULER_COMMON_PATH_H_

#include <string>
#include <vector>

namespace weft {

// The components that the paths of parameters, one or more, all begin with; without a parameter's own name.
//   {"blocks.0.attn.qkv.weight", "blocks.0.attn.proj.bias"} -> "blocks.0.attn"
std::string CommonPath(const std::vector<std::string>& paths);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_COMMON_PATH_H_
