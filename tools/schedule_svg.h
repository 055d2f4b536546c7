// A pipeline schedule as a picture: a row per rank, time to the right.

#ifndef WEFT_TOOLS_SCHEDULE_SVG_H_
#define WEFT_TOOLS_SCHEDULE_SVG_H_

#include <string>

#include "tools/schedule_report.h"

namespace weft {

// Draws what ranks compute when, as SVG: F, I, W and B in colours of their own, darker with each chunk, with
// the number of the microbatch; what is blank is idle. The parts of a pair that share its time lie above each
// other. The report is ok.
std::string ScheduleSvg(const ScheduleReport& report);

}  // namespace weft

#endif  // WEFT_TOOLS_SCHEDULE_SVG_H_
