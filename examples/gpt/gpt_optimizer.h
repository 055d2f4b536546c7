#ifndef WEFT_EXAMPLES_GPT_GPT_OPTIMIZER_H_
#define WEFT_EXAMPLES_GPT_GPT_OPTIMIZER_H_

#include <memory>
#include <vector>

#include "dtensor/nn/parameter.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/schedule.h"
#include "examples/gpt/gpt_flags.h"

namespace weft {

// What trains a GPT, as --optimizer says. Of muon the products' weights of the blocks are matrices, with
// queries, keys and values apart, and updates of AdamW's rms, so that one learning rate serves all
// parameters; sgd has a momentum, beta1, Nesterov's or plain.
std::unique_ptr<Optimizer> MakeGptOptimizer(const GptRun& run, const std::vector<Parameter*>& parameters);

// The learning rate of each step, as --schedule_lr says.
Schedule MakeGptSchedule(const GptRun& run);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_OPTIMIZER_H_
