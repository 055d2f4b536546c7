#ifndef WEFT_TESTS_SMALL_STACKS_H_
#define WEFT_TESTS_SMALL_STACKS_H_

#include <pthread.h>

namespace weft {

// Gives threads to come stacks of 1 MiB, whatever the shell's limit of them is: the system counts stacks as a process's data, whole.
// Returns whether it has.
inline bool UseSmallStacks() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  const bool is_set =
      pthread_attr_setstacksize(&attributes, 1 << 20) == 0 && pthread_setattr_default_np(&attributes) == 0;
  pthread_attr_destroy(&attributes);
  return is_set;
}

}  // namespace weft

#endif  // WEFT_TESTS_SMALL_STACKS_H_
