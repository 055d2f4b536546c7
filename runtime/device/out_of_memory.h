#ifndef WEFT_RUNTIME_DEVICE_OUT_OF_MEMORY_H_
#define WEFT_RUNTIME_DEVICE_OUT_OF_MEMORY_H_

#include <exception>

namespace weft {

// Whether the error says that an allocator, of a device or of the host, had no memory left ("out of memory on cuda: ..."),
// whatever others have put before it.
bool IsOutOfMemory(const std::exception& error);

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_OUT_OF_MEMORY_H_
