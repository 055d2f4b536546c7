// What buckets of gradients are called: in the ledger, in traces, and where a rank waits for one.

#ifndef WEFT_PARALLEL_SCHEDULER_BUCKET_NAME_H_
#define WEFT_PARALLEL_SCHEDULER_BUCKET_NAME_H_

#include <string>
#include <vector>

namespace weft {

// Of a unit: the module that its parameters, one or more, have in common.
//   {"blocks.0.attn.qkv.weight", "blocks.0.attn.proj.bias"} -> "blocks.0.attn"
std::string CommonPath(const std::vector<std::string>& paths);

// Of a bucket that is cut by size, the `number`-th to be issued, from 0: the modules of the first and the last of its
// parameters, one or more, in the order in which their gradients come. A parameter of the root stands for itself.
//   3, {"blocks.1.mlp.up.weight", ..., "blocks.0.ln_1.bias"} -> "gradient bucket 3, from blocks.1.mlp.up to blocks.0.ln_1"
//   0, {"head.weight"}                                       -> "gradient bucket 0, of head"
std::string BucketName(int number, const std::vector<std::string>& paths);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_BUCKET_NAME_H_
