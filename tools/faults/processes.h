#ifndef WEFT_TOOLS_FAULTS_PROCESSES_H_
#define WEFT_TOOLS_FAULTS_PROCESSES_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace weft {

// The processes of a job, as /proc shows them now.

// The ranks of the job that weft_run was given `run_id` for: rank to process. Zombies are none. In a store apart a job that is
// started again after it failed is "run_id.1", then "run_id.2": they are the same job here.
std::map<int, pid_t> RanksOf(const std::string& run_id);

// All processes that carry `run_id` among their variables, ranks and what they have started, or on their command line:
// weft_run's two.
std::vector<pid_t> ProcessesOf(const std::string& run_id);

// All processes with that word on their command line.
std::vector<pid_t> ProcessesGiven(const std::string& word);

// Whether a process of that number runs, and is no zombie.
bool IsAlive(pid_t pid);

// The children of a process.
std::vector<pid_t> ChildrenOf(pid_t parent);

// A process and all that it, or what it started, has started and that has not lost its parent.
std::vector<pid_t> FamilyOf(pid_t ancestor);

// Waits until none of them is alive. False if one still is after `bound`.
bool AwaitGone(const std::vector<pid_t>& processes, std::chrono::milliseconds bound);

// The names of the files in /dev/shm and its folders.
std::vector<std::string> SharedMemoryNames();

// Whether a process has that file open, or in its memory.
bool IsInUse(const std::string& path);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_PROCESSES_H_
