#ifndef WEFT_RUNTIME_BASE_OPEN_FILE_LIMIT_H_
#define WEFT_RUNTIME_BASE_OPEN_FILE_LIMIT_H_

namespace weft {

// Lets this process, and the programs that it starts from then on, have as many files and connections open as the system
// allows: raises the soft limit (`ulimit -Sn`) to the hard one, at most to 1048576. A shell's soft limit is 1024 as a rule,
// which is fewer than the store of a job of a thousand ranks has connections. Where it cannot be raised, it stays.
//
// For what begins a process of a job, before it opens anything.
// Source: NCCL's bootstrap raises it, too.
void RaiseOpenFileLimit();

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_OPEN_FILE_LIMIT_H_
