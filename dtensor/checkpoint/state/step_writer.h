// Writes one step of a checkpoint folder, so that after a crash at any instant it is whole or not there.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_STEP_WRITER_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_STEP_WRITER_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/state/agreement.h"

namespace weft {

// What a step is to hold, on one rank.
struct StepToWrite {
  Manifest manifest;  // but for files and refers_to
  std::vector<PieceToSave> pieces;
  PieceFileOptions options;
  int keep = 0;  // steps that stay, the newest; 0: all
  std::string
      life;  // of the job, alike on all ranks: part of the temporary name, so that two lives do not meet
  // Not null: this rank has nothing to write, and this is why; WriteStep fails with it on every rank.
  std::exception_ptr failure = nullptr;
};

// Steps of a folder by number, whose files this process has written, or whose headers it has read: while the files have the
// sizes that the manifest says, the headers are not read again.
using KnownSteps = std::map<int64_t, Manifest>;

// The protocol. Each rank writes its file into step-N.G-LIFE.tmp and makes its contents durable; rank 0 then writes the
// manifest, once all files are there with their sizes, makes it durable, then the folder's names, renames the folder to
// step-N, and makes that name durable, or takes it back; then it drops steps that are not kept and that no kept one refers
// to. A step of this number that is broken is set aside before. Until the renaming there is no step N, and when there is
// one, all of it is there. Every rank calls it alike; it may run on another thread than the rank's.
//
// Returns what this rank has written. `known`: as DropSteps, of rank 0; kept from one step to the next.
// Errors: on every rank those of any, and what was there before is as it was; FailedPrecondition if the folder has a
//         step of this number already that is whole, or in which a whole one above it has elements.
WrittenPieces WriteStep(Agreement& agreement, Files& files, const std::string& folder,
                        const StepToWrite& step, KnownSteps* known);

// Removes what writers that died have left: temporary folders, nonces, a hint. Of one process, before any writes. What
// cannot be removed stays, and `warn` is told.
void RemoveLeftovers(Files& files, const std::string& folder,
                     const std::function<void(const std::string& line)>& warn);

// Removes steps below `newest`, which is whole, so that with it `keep` that are whole stay, beside those that they refer to:
// these for their own elements, and what they refer to themselves goes. Steps whose own files are broken, or those that they
// refer to, do not count, and stay; so do those above `newest`, of a program that went back, and what they refer to.
// `known` gets all that is looked at.
// Cost:   reads the headers of all files of the steps below that are not known, and asks for the sizes of the others'.
// Errors: as InspectStep: then nothing is removed.
void DropSteps(Files& files, const std::string& folder, int keep, const Manifest& newest, KnownSteps* known);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_STEP_WRITER_H_
