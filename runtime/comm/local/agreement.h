#ifndef WEFT_RUNTIME_COMM_LOCAL_AGREEMENT_H_
#define WEFT_RUNTIME_COMM_LOCAL_AGREEMENT_H_

#include "runtime/comm/local/group.h"

namespace weft {

// Compares the postings of all members, which have arrived. All come to the same verdict, since all look at the same
// postings in the same order.
//
// Errors: InvalidArgument if they differ, naming both sides; it ends the group.
void AgreeOnPostings(LocalGroup& group, int me);

// The same part by part, of postings that agree: those of lists have the sums of their parts' counts.
void AgreeOnParts(LocalGroup& group, int me);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_AGREEMENT_H_
