#!/bin/bash
# The program in the README is examples/quickstart.cc; the code of docs/tutorial.md is examples/tutorial.cc, blank lines and its
# header comment aside, and its unmarked blocks are what that program prints; likewise docs/modules.md. Arguments: README.md,
# quickstart.cc; of either page the page, the source, the program.
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

# Page $1 has the code of $2, the source of program $3, and what it prints; the program writes a file of that name with the
# ending .safetensors.
check_page() {
  local page=$1 source=$2 program=$3 name
  name=$(basename "$page")
  diff <(blocks "$page" '```cpp' | grep -v '^$') <(sed '1,/^$/d' "$source" | grep -v '^$') ||
    fail "the code in docs/$name differs from examples/$(basename "$source")"
  diff <(blocks "$page" '```') <("$program" "$TEST_TMPDIR/${name%.md}.safetensors") ||
    fail "docs/$name shows something else than examples/$(basename "$program") prints"
  # A page whose blocks are not found would pass otherwise.
  [[ $(blocks "$page" '```' | wc -l) -gt 10 ]] || fail "docs/$name has no output to compare"
}
check_page "$3" "$4" "$5"
check_page "$6" "$7" "$8"
exit $failed
