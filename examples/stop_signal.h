// The signals by which a user, or a launcher, asks a training program to save and end.

#ifndef WEFT_EXAMPLES_STOP_SIGNAL_H_
#define WEFT_EXAMPLES_STOP_SIGNAL_H_

namespace weft {

// From now on the first SIGINT or SIGTERM of this process only sets StopSignal(); the ranks then stop after their step.
//
//   another within a second       is the same wish: batch systems signal all processes, and launchers pass signals on
//   another, later                ends the program at once, by its usual action
//   another, under weft_run       changes nothing: weft_run itself counts, and kills the ranks
//
// As under weft_run it is under SpawnRanks, with whose process the ranks end.
//
// Errors: those of ParseLaunchEnvironment.
void CatchStopSignals();

// The first such signal; 0: none has come. Any thread.
int StopSignal();

}  // namespace weft

#endif  // WEFT_EXAMPLES_STOP_SIGNAL_H_
