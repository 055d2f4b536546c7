#include <memory>

#include "runtime/base/env.h"
#include "runtime/launch/process_world.h"
#include "runtime/launch/world.h"

namespace weft {

std::unique_ptr<World> World::FromEnv(const WorldOptions& options) {
  return MakeProcessWorld(ParseLaunchEnvironment(LauncherVariables()), options);
}

}  // namespace weft
