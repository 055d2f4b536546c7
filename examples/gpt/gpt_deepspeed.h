// DeepSpeed's configuration files as flags of train_gpt.

#ifndef WEFT_EXAMPLES_GPT_GPT_DEEPSPEED_H_
#define WEFT_EXAMPLES_GPT_GPT_DEEPSPEED_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/base/flags_usage.h"

namespace weft {

// What a file says, as flags. `around`: the mesh is one of them.
//
// Flags that mean something beside a value of another alone, such as the loss scale's beside --dtype=f16, are left out where
// the command line gives that one another value.
//
// What a file does not say is train_gpt's default, not DeepSpeed's; but gradients of a new run are not clipped, an optimizer that is
// there has DeepSpeed's defaults for the params that it leaves out, and without a scheduler its learning rate stays. "auto" is
// train_gpt's own value.
// Errors: those of DeepSpeedConfig::FromJson and ResolveDeepSpeedBatch.
std::vector<FlagValue> GptFlagsFromDeepSpeed(absl::string_view text, const FlagsAround& around);

// For FlagsUsage::foreign.
ForeignConfig DeepSpeedForGpt();

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_DEEPSPEED_H_
