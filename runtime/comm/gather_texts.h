// Everybody's text, on everybody.

#ifndef WEFT_RUNTIME_COMM_GATHER_TEXTS_H_
#define WEFT_RUNTIME_COMM_GATHER_TEXTS_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/allocator.h"

namespace weft {

// The texts that the group's ranks give, by group rank; any lengths, any bytes.
//
// Cost:   two all-gathers, of the lengths and of the bytes, in memory of `allocator`, with `options`.
// Errors: as AllGather.
std::vector<std::string> AllGatherTexts(Communicator& group, const std::string& mine,
                                        const std::shared_ptr<Allocator>& allocator,
                                        const CommOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GATHER_TEXTS_H_
