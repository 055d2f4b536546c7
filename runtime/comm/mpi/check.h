#ifndef WEFT_RUNTIME_COMM_MPI_CHECK_H_
#define WEFT_RUNTIME_COMM_MPI_CHECK_H_

#include "absl/strings/string_view.h"

namespace weft {

// Throws unless `code`, which the MPI function `call` returned, is MPI_SUCCESS: the one place where MPI's
// errors become Weft's. Every communicator of this backend returns its errors (MPI_ERRORS_RETURN).
//
// Errors: ResourceExhausted if MPI lacks memory; Internal for what MPI calls a wrong argument; else Aborted
//         (the transport or a peer failed). The message names the call and holds MPI's own text.
void CheckMpi(int code, absl::string_view call);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_CHECK_H_
