#include "tools/faults/preloading_program.h"

#include <filesystem>
#include <fstream>

namespace weft {

void WritePreloadingProgram(const std::string& path, const std::string& library, const std::string& lines,
                            const std::string& program) {
  std::ofstream(path) << "#!/bin/bash\n"
                      << lines << "export LD_PRELOAD='" << library << "'${LD_PRELOAD:+:$LD_PRELOAD}\n"
                      << "exec '" << program << "' \"$@\"\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

}  // namespace weft
