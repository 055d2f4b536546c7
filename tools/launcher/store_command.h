#ifndef WEFT_TOOLS_LAUNCHER_STORE_COMMAND_H_
#define WEFT_TOOLS_LAUNCHER_STORE_COMMAND_H_

#include "runtime/base/flags.h"

namespace weft {

// `weft_run store`: the store of a job as a process of its own, which restarts in place (docs/launching.md).

// The face of it: what `weft_run store --help` prints.
FlagsUsage StoreUsage();

// Keeps the store that the flags describe until SIGINT, SIGTERM, SIGHUP or SIGQUIT; returns 0 then. Prints its address on
// stdout, and writes it to the file `address` in the store's folder, when it may be joined.
//
// Threads: to be called before the process has a second one.
// Errors:  InvalidArgument for flags that cannot be; those of TcpStoreServer.
int RunStore(const ParsedFlags& flags);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_STORE_COMMAND_H_
