// What DeepSpeed's files may not say beside a GPU, on the emulated one.

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "examples/gpt/gpt_deepspeed.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(CudaGptDeepSpeedTest, NvmeIsNotForGpus) {
  for (const char* key : {"offload_optimizer", "offload_param"}) {
    const std::string text = absl::StrCat(R"({"zero_optimization": {"stage": 3, ")", key,
                                          R"(": {"device": "nvme", "nvme_path": "/nvme"}}})");
    const auto translate = [&](const std::string& device) {
      const std::map<std::string, std::string> flags = {
          {"mesh", "dp=2"}, {"mesh_choices", ""}, {"backend", "local"}, {"device", device}};
      std::map<std::string, std::string> given;
      const auto value_of = [&](absl::string_view flag) { return flags.at(std::string(flag)); };
      for (const FlagValue& value : GptFlagsFromDeepSpeed(text, {.value_of = value_of}))
        given[value.flag] = value.value;
      return given;
    };
    EXPECT_EQ(translate("cpu").at("offload_folder"), "/nvme");
    EXPECT_EQ(
        InvalidArgumentMessage([&] { translate("cuda"); }),
        absl::StrCat("key \"zero_optimization.", key, ".device\": expected none or cpu on a GPU, got nvme"));
  }
}

}  // namespace
}  // namespace weft
