#!/usr/bin/env bash
# What tools/clang_tidy.sh makes of a clang-tidy that finds something, nothing, or is killed; bazel and clang-tidy are stand-ins.
set -euo pipefail
script=$PWD/$1
folder=$(mktemp -d "$TEST_TMPDIR/clang_tidy.XXXXXX")

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect() { [[ $2 == *"$1"* ]] || fail "expected '$1' in: $2"; }

mkdir -p "$folder/tools" "$folder/bin"
cp "$script" "$folder/tools/clang_tidy.sh"
cat >"$folder/bin/bazel" <<'STAND_IN'
#!/bin/bash
case $1 in
  aquery) echo '{"actions": [{"arguments": ["g++", "-c", "runtime/a.cc"]}, {"arguments": ["g++", "-c", "runtime/b.cc"]}]}' ;;
  info) echo /nowhere ;;
esac
STAND_IN
chmod +x "$folder/bin/bazel"
export PATH=$folder/bin:$PATH JOBS=1

# clang_tidy OF_A: runs the script; clang-tidy does that for the first source, and finds nothing in the second.
clang_tidy() {
  # shellcheck disable=SC2016  # the stand-in's shell expands it
  printf '#!/bin/bash\n[[ ${*: -1} != runtime/a.cc ]] || { %s; }\n' "$1" >"$folder/bin/clang-tidy"
  chmod +x "$folder/bin/clang-tidy"
  "$folder/tools/clang_tidy.sh" 2>&1
}

said=$(clang_tidy ':') || fail "there is no finding: $said"
expect "clang-tidy: 2 sources" "$said"
said=$(clang_tidy 'echo "/a.cc:1:2: warning: long [readability-x]"') && fail "a finding: $said"
expect "1 [readability-x]" "$said"
said=$(clang_tidy 'echo "/a.cc:1:2: error: unknown [clang-diagnostic-error]"; exit 1') && fail "an error: $said"
expect "error: clang could not read every source" "$said"

# shellcheck disable=SC2016  # likewise
said=$(clang_tidy 'kill -KILL $$') && fail "clang-tidy is killed, and all is well: $said"
expect "error: clang-tidy did not look at every source" "$said"
said=$(clang_tidy 'echo "LLVM ERROR: no memory" >&2; exit 1') && fail "clang-tidy fails, and all is well: $said"
expect "LLVM ERROR: no memory" "$said"
expect "error: clang-tidy did not look at every source" "$said"
