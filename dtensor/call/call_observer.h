#ifndef WEFT_DTENSOR_CALL_CALL_OBSERVER_H_
#define WEFT_DTENSOR_CALL_CALL_OBSERVER_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/call/erased_call.h"
#include "dtensor/context/rank_state.h"
#include "dtensor/context/resolved_call.h"
#include "mesh/redistribution/rearrangement.h"

namespace weft {

// Sees every call that is planned, before anything moves; not those that an op's decomposition makes.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void OnCall(const ErasedCall& call, const ResolvedCall& plan) = 0;
  // Sees what moves rows between ranks without being a call of an op: a slice, join, pad or roll of a dim that is
  // split. `sources` as they lie before they are brought to the rearrangement's layout.
  virtual void OnRearrange(absl::string_view /*name*/, absl::Span<const DTensor> /*sources*/,
                           const Rearrangement& /*rearrangement*/, const LoweredRearrangement& /*lowered*/) {}
};

// `observer` alone sees the calls while it lives; null: nobody does.
class CallObserverGuard : ScopedValue<CallObserver*> {
 public:
  CallObserverGuard(RankState& state, CallObserver* observer) : ScopedValue(state.call_observer_, observer) {}
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_CALL_OBSERVER_H_
