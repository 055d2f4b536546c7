// Flags in a file: --config=run.json, and the configuration of a run as such a file.

#ifndef WEFT_RUNTIME_BASE_CONFIG_FILE_H_
#define WEFT_RUNTIME_BASE_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "runtime/base/flags_usage.h"

namespace weft {

// Reads a configuration file and sets the flags that it names. Returns their names.
//
// The file is a JSON object. Its keys are names of flags, or titles of groups (FlagGroup, in any case, blanks as they are or
// as underscores) that hold an object of flags of that group: {"lr": 0.001, "Training": {"batch": 12}}. A key that is both is
// the group where it holds an object. A bool is true or false, a whole number or a number is one, a text is a text, a list of
// texts an array. A file that has a key of a ForeignConfig is read as that system reads it.
//
// `around`: of files of other systems. `path`: UserPath has been applied.
// Errors: NotFound; InvalidArgument that names the file and the key: text that is no JSON, a key that is unknown (names
//         the nearest) or given twice, a flag in a group that is not its own, a value of another type (what was given, what
//         was expected); those of ForeignConfig::translate.
std::vector<std::string> ApplyConfigFile(const std::string& path, const FlagsUsage& usage,
                                         const FlagsAround& around);

// All flags of the program as they are now, as a file that ApplyConfigFile reads: one object, a line per flag, in the order
// of the groups. What --print_config prints, and what a run keeps beside its checkpoints.
std::string EffectiveConfig(const FlagsUsage& usage);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_CONFIG_FILE_H_
