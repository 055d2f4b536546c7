#!/bin/bash
# The program in the README is examples/quickstart.cc; the code of the tutorial is examples/tutorial.cc, blank lines and its header
# comment aside, and its unmarked blocks are what that program prints. Arguments: README.md, quickstart.cc, tutorial.md,
# tutorial.cc, the tutorial program.
set -u
failed=0
fail() {
  echo "FAILED: $*" >&2
  failed=1
}

# The blocks of page $1 that begin with the line $2.
blocks() {
  awk -v fence="$2" '/^```/ { inside = !inside; wanted = inside && $0 == fence; next } wanted' "$1"
}

diff <(blocks "$1" '```cpp') "$2" || fail "the program in README.md differs from examples/quickstart.cc"

diff <(blocks "$3" '```cpp' | grep -v '^$') <(sed '1,/^$/d' "$4" | grep -v '^$') ||
  fail "the code in docs/tutorial.md differs from examples/tutorial.cc"
diff <(blocks "$3" '```') <("$5" "$TEST_TMPDIR/tutorial.safetensors") ||
  fail "docs/tutorial.md shows something else than examples/tutorial prints"
# A page whose blocks are not found would pass otherwise.
[[ $(blocks "$3" '```' | wc -l) -gt 10 ]] || fail "docs/tutorial.md has no output to compare"
exit $failed
