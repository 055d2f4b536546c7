#!/bin/bash
# The program in the README is examples/quickstart.cc. Arguments: the two files.
set -u
diff <(awk '/^```cpp$/ {code = 1; next} /^```$/ {code = 0} code' "$1") "$2" ||
  { echo "FAILED: the program in README.md differs from examples/quickstart.cc" >&2; exit 1; }
