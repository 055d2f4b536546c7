// The flags of train_gpt as tests give them.
#ifndef WEFT_TESTS_EXAMPLES_GPT_RUN_OF_H_
#define WEFT_TESTS_EXAMPLES_GPT_RUN_OF_H_

#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "examples/gpt/gpt_flags.h"
#include "tests/message_of.h"

namespace weft {

// What a command line gives, with a tokenizer of 256 tokens. Flags are as they were afterwards.
inline GptRun RunOf(const std::vector<std::string>& arguments) {
  const absl::FlagSaver saver;
  std::vector<const char*> argv = {"train_gpt"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  ParseFlags(static_cast<int>(argv.size()), argv.data(), TrainGptUsage());
  return GptRunFromFlags(/*tokenizer_vocabulary=*/256);
}

inline std::string MessageOf(const std::vector<std::string>& arguments) {
  return InvalidArgumentMessage([&] { RunOf(arguments); });
}

}  // namespace weft

#endif  // WEFT_TESTS_EXAMPLES_GPT_RUN_OF_H_
