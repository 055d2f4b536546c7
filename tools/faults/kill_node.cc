#include "tools/faults/kill_node.h"

#include <signal.h>

#include <vector>

#include "tools/faults/processes.h"

namespace weft {

void KillNode(pid_t guard, Fault fault) {
  if (guard <= 0) return;  // it has ended by itself meanwhile
  std::vector<pid_t> victims;
  if (fault == Fault::kAgent || fault == Fault::kBoth) victims = ChildrenOf(guard);
  if (fault == Fault::kGuard || fault == Fault::kBoth) victims.push_back(guard);
  if (fault == Fault::kHost) victims = FamilyOf(guard);
  for (const pid_t victim : victims) kill(victim, SIGKILL);
}

}  // namespace weft
