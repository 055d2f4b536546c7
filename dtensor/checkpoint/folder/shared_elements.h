// Elements that lie in one step's file and that later steps refer to.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_SHARED_ELEMENTS_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_SHARED_ELEMENTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/tensor_source.h"

namespace weft {

// Where the elements of a piece begin, and which they are: a step that is written anew may have others at the same place.
struct ElementsPlace {
  int64_t step = 0;
  std::string file;  // in that step's folder
  int64_t offset = 0;
  uint32_t crc32c = 0;  // that they are to have

  auto operator<=>(const ElementsPlace&) const = default;
};

// Of the elements that `step` refers to in other steps' files, those that cannot be read there or do not have their
// checksums. Each of `share.parts` callers looks into some of the step's files.
// Cost:   one read of these elements.
// Errors: as ReadManifest; as InspectStep for what cannot be read now.
std::set<ElementsPlace> BrokenReferences(Files& files, const std::string& folder, int64_t step,
                                         const TensorSource::Share& share);

// The steps of the folder, ascending, in which any of these elements lie or that refer to them. Those of another checksum are none of
// these. A file whose header is broken is of none.
// Cost:   reads the headers of all files of all steps.
// Errors: those of the folder.
std::vector<int64_t> StepsThatHave(Files& files, const std::string& folder,
                                   const std::set<ElementsPlace>& places);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_SHARED_ELEMENTS_H_
