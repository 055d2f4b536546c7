#ifndef WEFT_RUNTIME_COMM_FLIGHT_CLOCK_H_
#define WEFT_RUNTIME_COMM_FLIGHT_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace weft {

// Nanoseconds of the steady clock: the times of the flight recorder and the ledger.
inline int64_t FlightClock() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_FLIGHT_CLOCK_H_
