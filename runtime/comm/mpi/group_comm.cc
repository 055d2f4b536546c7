#include "runtime/comm/mpi/group_comm.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "runtime/comm/mpi/check.h"
#include "runtime/comm/mpi/leftovers.h"

namespace weft {
namespace {

class Creation final : public MpiLeftover {
 public:
  explicit Creation(const MpiGroup& group) : parent_(group.transport().parent()) {
    MPI_Group all = MPI_GROUP_NULL;
    CheckMpi(MPI_Comm_group(parent_, &all), "MPI_Comm_group");
    const int code = MPI_Group_incl(all, group.size(), group.ranks().data(), &members_);
    MPI_Group_free(&all);
    CheckMpi(code, "MPI_Group_incl");
    // Of communicators that are made at once by several threads, those of one tag must not share two members.
    tag_ = static_cast<int>((group.key().ranks * 31 + group.key().generation) % 32768);
    thread_ = std::thread([this] {
      code_ = MPI_Comm_create_group(parent_, members_, tag_, &comm_);
      done_.store(true);
    });
  }
  ~Creation() override {
    thread_.join();
    MPI_Group_free(&members_);
  }

  bool Done() override { return done_.load(); }
  std::string What() const override { return "the making of an MPI communicator"; }

  MPI_Comm Result() const {
    CheckMpi(code_, "MPI_Comm_create_group");
    CheckMpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm_;
  }

 private:
  const MPI_Comm parent_;
  MPI_Group members_ = MPI_GROUP_NULL;
  int tag_ = 0;
  int code_ = MPI_SUCCESS;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::atomic<bool> done_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

MPI_Comm GroupComm(MpiGroup& group, const MpiAwaited& awaited, std::chrono::milliseconds timeout) {
  if (group.comm() != MPI_COMM_NULL) return group.comm();
  auto creation = std::make_unique<Creation>(group);
  try {
    MpiWait wait(group, timeout);
    while (!creation->Done()) wait.Turn(awaited);
  } catch (...) {
    group.transport().leftovers().Keep(std::move(creation));
    throw;
  }
  group.set_comm(creation->Result());
  return group.comm();
}

}  // namespace weft
