// Starts a program as the ranks of one job, as torchrun does (docs/launching.md):
//
//   bazel-bin/tools/weft_run --nproc-per-node=4 bazel-bin/examples/train_gpt --mesh=dp=2,tp=2
//
//   bazel-bin/tools/weft_run store --dir=store      # a job's store as a process of its own
//
// stdout is rank 0's alone where a program reads it. Exits with the code of the first worker that failed.

#include <iostream>
#include <string_view>

#include "runtime/base/config_file.h"
#include "runtime/base/flags.h"
#include "tools/launcher/launch.h"
#include "tools/launcher/launch_options.h"
#include "tools/launcher/store_command.h"

namespace {

int Run(int argc, char** argv) {
  const weft::LaunchOptions options = weft::ParseLaunchOptions(argc, argv);
  if (options.help || options.version) {
    std::cout << (options.help ? weft::FlagsHelp(weft::WeftRunUsage()) : weft::VersionLine()) << std::flush;
    return 0;
  }
  if (options.print_config) {
    std::cout << weft::EffectiveConfig(weft::WeftRunUsage()) << std::flush;
    return 0;
  }
  return weft::Launch(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "store") {
    return weft::RunMain(argc - 1, argv + 1, weft::StoreUsage(), weft::RunStore);
  }
  // ParseLaunchOptions reads the flags: where they end it alone knows.
  return weft::RunMain(1, argv, weft::WeftRunUsage(), [&] { return Run(argc, argv); });
}
