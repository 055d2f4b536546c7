#include "runtime/comm/mpi/check.h"

#include <mpi.h>

#include "runtime/base/error.h"

namespace weft {
namespace {

absl::StatusCode CodeOf(int error_class) {
  switch (error_class) {
    case MPI_ERR_NO_MEM:
      return absl::StatusCode::kResourceExhausted;
    case MPI_ERR_OTHER:
    case MPI_ERR_INTERN:
    case MPI_ERR_IN_STATUS:
    case MPI_ERR_PENDING:
    case MPI_ERR_UNKNOWN:
      return absl::StatusCode::kAborted;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

void CheckMpi(int code, absl::string_view call) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  Throw(CodeOf(error_class), call, " failed: ", absl::string_view(text, length));
}

}  // namespace weft
