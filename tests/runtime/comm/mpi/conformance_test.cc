// The conformance cases against the `mpi` backend.

#include "tests/runtime/comm/conformance.h"

#include "tests/runtime/comm/mpi/program.h"

namespace weft {
namespace {

INSTANTIATE_TEST_SUITE_P(Mpi, CommConformance,
                         testing::Values(CommBackend{
                             "mpi", [](int num_ranks, const std::function<void(World&)>& body) {
                               RunMpi(num_ranks, body);
                             }}));

}  // namespace
}  // namespace weft
