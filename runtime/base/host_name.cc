#include "runtime/base/host_name.h"

#include <unistd.h>

namespace weft {

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "an unnamed machine";
  return name;
}

}  // namespace weft
