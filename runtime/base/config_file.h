// Flags in a file: --config=run.json, and the configuration of a run as such a file.

#ifndef WEFT_RUNTIME_BASE_CONFIG_FILE_H_
#define WEFT_RUNTIME_BASE_CONFIG_FILE_H_

#include <set>
#include <string>
#include <vector>

#include "runtime/base/flags_usage.h"

namespace weft {

// Reads configuration files and sets the flags that they name: of several files the last one counts. Returns the names, without
// those of which a file of another system says nothing (FlagValue::is_default).
//
// A file is a JSON object. Its keys are names of flags, or titles of groups (FlagGroup, in any case, blanks as they are or
// as underscores) that hold an object of flags of that group: {"lr": 0.001, "Training": {"batch": 12}}. A key that is both is
// the group where it holds an object. A bool is true or false, a whole number or a number is one, a text is a text, a list of
// texts an array. A file that has a key of a ForeignConfig is read as that system reads it, beside what the files of flags
// say, wherever these stand.
//
// `around`: of the command line, for files of other systems. `paths`: UserPath has been applied; each is read once.
// Errors: NotFound; InvalidArgument that names the file and the key: text that is no JSON, a key that is unknown (names
//         the nearest) or given twice, a flag in a group that is not its own, a value of another type (what was given, what
//         was expected); those of ForeignConfig::translate.
std::set<std::string> ApplyConfigFiles(const std::vector<std::string>& paths, const FlagsUsage& usage,
                                       const FlagsAround& around);

// All flags of the program as they are now, as a file that ApplyConfigFiles reads: one object, a line per flag, in the order
// of the groups. What --print_config prints, and what a run keeps beside its checkpoints.
std::string EffectiveConfig(const FlagsUsage& usage);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_CONFIG_FILE_H_
