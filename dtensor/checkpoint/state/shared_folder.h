// Whether all ranks see one folder.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_SHARED_FOLDER_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_SHARED_FOLDER_H_

#include <chrono>
#include <string>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/state/agreement.h"

namespace weft {

// Makes the folder, writes a nonce into it from rank 0, and has every rank read that: now, rather than after hours of
// training on a machine that writes into a folder of its own. Every rank calls it alike.
//
// `patience`: how long a rank looks for it; network file systems show new names after seconds.
// Errors: FailedPrecondition on every rank, naming the ranks and machines that do not see it; those of the folder.
void CheckFolderIsShared(Agreement& agreement, Files& files, const std::string& folder,
                         std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_SHARED_FOLDER_H_
