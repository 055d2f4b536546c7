#ifndef WEFT_RUNTIME_COMM_MPI_MOVE_LARGE_H_
#define WEFT_RUNTIME_COMM_MPI_MOVE_LARGE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/mpi/group.h"
#include "runtime/comm/mpi/posting.h"

namespace weft {

// Moves the data of a collective that all members have entered, with `postings`, and agree on.
//
// Reductions go in blocks: each member gets its slice of the block from all (MPI_Ialltoallv), reduces it in
// rank order, and hands it on (MPI_Iallgatherv, or MPI_Igatherv to a root), while the next block is on its
// way. What combines nothing goes straight from the input to the output, by the MPI collective of its name;
// where that would overflow MPI's ints, piece by piece, in messages.
//
// Cost:   staging of two blocks (MpiOptions) and, for a reduction to a root, their slices; kept by the group.
// Errors: DeadlineExceeded if MPI does not come to an end of a step within call.timeout: each ends the group.
// If the
//         group fails meanwhile, the data still arrive, unless a member does not take part for kMpiMoving.
void MoveLarge(MpiGroup& group, const CollectiveCall& call, absl::Span<const MpiPosting> postings,
               absl::FunctionRef<std::string()> what);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_MOVE_LARGE_H_
