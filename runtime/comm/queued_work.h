// What a device's queue does, as a Work.

#ifndef WEFT_RUNTIME_COMM_QUEUED_WORK_H_
#define WEFT_RUNTIME_COMM_QUEUED_WORK_H_

#include <memory>
#include <vector>

#include "runtime/comm/work.h"
#include "runtime/device/device_queue.h"

namespace weft {

// The end of `batch`, whose results lie on the device: waiting for it joins (QueuedBatch::Join), and the host does not
// wait. `works`: what the batch consists of, or has waited for, in their order: their errors are those of the wait, and the
// first is the cause of the others.
// Threads: waited for by the rank's.
Work MakeQueuedWork(std::shared_ptr<QueuedBatch> batch, std::vector<Work> works = {});

// The same of a batch whose results lie on the host, which waits for it, once the device's own work waits for `works`: so the
// time that they take is told as theirs (StreamStalls of a GPU).
// Threads: waited for by the rank's.
Work MakeArrivalWork(std::shared_ptr<QueuedBatch> batch, std::vector<Work> works = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_QUEUED_WORK_H_
