#include "parallel/pipeline/checker.h"

#include "parallel/pipeline/action_order.h"
#include "parallel/pipeline/deadlock.h"

namespace weft {

ScheduleCertificate CheckSchedule(const PipelineSchedule& schedule, const ScheduleTimes& times,
                                  const BytesOfStage& bytes) {
  ScheduleCertificate certificate;
  certificate.error = ActionOrderDefect(schedule);
  if (certificate.error.empty()) certificate.error = DeadlockOf(schedule);
  if (!certificate.error.empty()) return certificate;
  certificate.ok = true;
  certificate.timeline = SimulateSchedule(schedule, times);
  certificate.holdings = HoldingsOf(schedule);
  if (bytes) certificate.bytes = HeldBytesOf(schedule, bytes);
  return certificate;
}

}  // namespace weft
