#include "runtime/comm/mpi/pending.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/mpi/check.h"

namespace weft {
namespace {

bool TestAll(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return true;
  int done = 0;
  CheckMpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
           "MPI_Testall");
  if (done) requests.clear();
  return done != 0;
}

}  // namespace

const int* MpiBatch::Ints(absl::Span<const int64_t> values) {
  return numbers.emplace_back(values.begin(), values.end()).data();
}

bool MpiBatch::Done() {
  const bool received = TestAll(receives);
  if (!TestAll(requests) || !received) return false;
  numbers.clear();
  return true;
}

bool MpiPending::Held::Done() {
  bool done = true;
  for (MpiBatch& batch : batches) done &= batch.Done();
  return done;
}

std::string MpiPending::Held::What() const {
  std::string text = absl::StrCat(what, " (requests and receives of each batch:");
  for (const MpiBatch& batch : batches) {
    absl::StrAppend(&text, " ", batch.requests.size(), "+", batch.receives.size());
  }
  return text + ")";
}

bool MpiPending::idle() const {
  for (const MpiBatch& batch : held_->batches) {
    if (!batch.requests.empty() || !batch.receives.empty()) return false;
  }
  return true;
}

MpiPending::~MpiPending() {
  if (idle()) return;
  for (MpiBatch& batch : held_->batches) {
    for (MPI_Request& receive : batch.receives) {
      if (receive != MPI_REQUEST_NULL) MPI_Cancel(&receive);
    }
  }
  try {
    if (held_->Done()) return;
  } catch (const Error&) {
    // MPI's own failure: what it still does is not known.
  }
  held_->what = what_();
  leftovers_.Keep(std::move(held_));
}

}  // namespace weft
