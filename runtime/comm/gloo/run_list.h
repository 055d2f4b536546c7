#ifndef WEFT_RUNTIME_COMM_GLOO_RUN_LIST_H_
#define WEFT_RUNTIME_COMM_GLOO_RUN_LIST_H_

#include "absl/types/span.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Takes this member through a list of two or more all-reduces, all-gathers or reduce-scatters of one dtype as one
// operation of `group`: one header, which says what the whole list is, and behind it the bytes of all parts,
// straight from inputs to outputs. Nobody waits between parts: what a part sends is on its way while the part
// before it is received or reduced. When it returns, the calls' tensors are the caller's again.
//
// `list`:  as Append makes it of the parts.
// Cost:    messages straight between pairs; steps: one, of all-reduces two, unless two members share memory.
// Errors:  as RunGlooCollective.
void RunGlooList(GlooGroup& group, const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_RUN_LIST_H_
