#ifndef WEFT_RUNTIME_BASE_VERSION_H_
#define WEFT_RUNTIME_BASE_VERSION_H_

// The version of Weft. Programs print it for --version; CHANGELOG.md says what each version brought.

namespace weft {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_VERSION_H_
