#ifndef WEFT_RUNTIME_BASE_HOST_NAME_H_
#define WEFT_RUNTIME_BASE_HOST_NAME_H_

#include <string>

namespace weft {

// What this machine calls itself; "an unnamed machine" if it does not.
std::string HostName();

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_HOST_NAME_H_
