// Writes one step of a checkpoint folder, so that after a crash at any instant it is whole or not there.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_STEP_WRITER_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_STEP_WRITER_H_

#include <memory>
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
};

// The protocol. Each rank writes its file into step-N.G.tmp and makes its contents durable; rank 0 then writes the
// manifest, makes it durable, then the folder's names, renames the folder to step-N, and makes that name durable; then
// it drops steps that are not kept and that no kept one refers to. Until the renaming there is no step N, and when there is
// one, all of it is there. Every rank calls it alike; it may run on another thread than the rank's.
//
// Returns what this rank has written.
// Errors: on every rank those of any, and what was there before is as it was; FailedPrecondition if the folder has a
//         step of this number already that is whole.
WrittenPieces WriteStep(Agreement& agreement, Files& files, const std::string& folder,
                        const StepToWrite& step);

// Removes what writers that died have left. Of one process, before any writes.
void RemoveLeftovers(Files& files, const std::string& folder);

// Removes whole steps but the newest `keep` and those that they refer to.
void DropSteps(Files& files, const std::string& folder, int keep);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_STEP_WRITER_H_
