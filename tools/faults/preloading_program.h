#ifndef WEFT_TOOLS_FAULTS_PRELOADING_PROGRAM_H_
#define WEFT_TOOLS_FAULTS_PRELOADING_PROGRAM_H_

#include <string>

namespace weft {

// Writes the script `path`, which runs `program` with its own arguments and with `library` ahead of other libraries, those that
// are preloaded already among them. `lines`: what the script does before, each with its end.
void WritePreloadingProgram(const std::string& path, const std::string& library, const std::string& lines,
                            const std::string& program);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_PRELOADING_PROGRAM_H_
