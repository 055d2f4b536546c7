// OpenMPI's times for the collectives that //benchmarks:collectives measures, on the ranks that mpirun
// starts; see openmpi_collectives.sh.

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "peer_times.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int me = 0, n = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  const auto barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  const auto agree = [](int64_t number) {
    MPI_Bcast(&number, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    return number;
  };
  for (const int64_t size : peers::kSizes) {
    const int count = static_cast<int>(size / 4);
    std::vector<float> a(count), b(count);
    std::vector<int> counts(n), offsets(n);
    for (int rank = 0; rank < n; ++rank) {
      offsets[rank] = static_cast<int>(static_cast<int64_t>(count) * rank / n);
      counts[rank] = static_cast<int>(static_cast<int64_t>(count) * (rank + 1) / n) - offsets[rank];
    }
    const auto time = [&](const char* name, const std::function<void()>& call) {
      const double ns = peers::CallNanoseconds(call, barrier, agree);
      if (me == 0) peers::PrintTime("OpenMPI", name, n, size, ns);
    };
    time("all_reduce",
         [&] { MPI_Allreduce(MPI_IN_PLACE, a.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    time("all_reduce_out",
         [&] { MPI_Allreduce(a.data(), b.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    time("all_gather", [&] {
      MPI_Allgatherv(a.data(), counts[me], MPI_FLOAT, b.data(), counts.data(), offsets.data(), MPI_FLOAT,
                     MPI_COMM_WORLD);
    });
    time("reduce_scatter",
         [&] { MPI_Reduce_scatter(a.data(), b.data(), counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    time("broadcast", [&] { MPI_Bcast(a.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); });
    time("send_recv", [&] {
      MPI_Sendrecv(a.data(), count, MPI_FLOAT, (me + 1) % n, 0, b.data(), count, MPI_FLOAT, (me + n - 1) % n,
                   0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    });
    if (count % n == 0) {
      time("all_to_all", [&] {
        MPI_Alltoall(a.data(), count / n, MPI_FLOAT, b.data(), count / n, MPI_FLOAT, MPI_COMM_WORLD);
      });
    }
  }
  MPI_Finalize();
}
