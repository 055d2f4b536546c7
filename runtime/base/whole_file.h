// A file's bytes at once.

#ifndef WEFT_RUNTIME_BASE_WHOLE_FILE_H_
#define WEFT_RUNTIME_BASE_WHOLE_FILE_H_

#include <string>

namespace weft {

// The bytes of the file at `path`, to its end. Streams (`text << file.rdbuf()`) take an error in the middle for the end.
// Errors: "cannot read 'PATH': REASON" by errno: NotFound where there is no such file, otherwise InvalidArgument.
std::string ReadWholeFile(const std::string& path);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_WHOLE_FILE_H_
