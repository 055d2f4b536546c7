#ifndef WEFT_RUNTIME_BASE_RANDOM_ID_H_
#define WEFT_RUNTIME_BASE_RANDOM_ID_H_

#include <string>

namespace weft {

// 128 bits that nobody can guess, and that nobody else has, as 32 hexadecimal digits: for secrets and for names. Not for what
// a seed should repeat, which philox makes.
std::string RandomId();

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_RANDOM_ID_H_
