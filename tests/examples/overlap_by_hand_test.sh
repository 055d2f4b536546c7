#!/bin/bash
# The example prints what the comment at its head says. Arguments: the program, its source.
set -u
expected=$(sed -n '/^\/\/ Prints/,/^$/ s|^//   ||p' "$2")
[[ -n "$expected" ]] || { echo "FAILED: $2 does not say what it prints" >&2; exit 1; }
diff <(echo "$expected") <("$1") || { echo "FAILED: the example prints something else" >&2; exit 1; }
