# shellcheck shell=bash
# What tests of //tools:chaos share: `. tests/tools/faults/chaos.sh "$@" || exit 1`. Arguments: chaos, weft_run and the trainers
# that the test names. The test is then in a folder of its own, $dir, and ends with `exit $((failures > 0))`.
# shellcheck disable=SC2034  # the test's
set -u
root=$PWD
chaos=$root/$1
weft_run=$root/$2
trainer=$root/$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/chaos.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# Of every job here; a flag given again counts.
job=(--weft_run="$weft_run" --train_gpt="$trainer" --cut_writes="$root/tools/faults/libcut_writes.so" --train_flags="" --log_format=json)

# try NAME FLAGS...: the report is in NAME.json, what chaos says in NAME.err, the job's stderr in NAME/hurt.log.
try() {
  local name=$1
  shift
  "$chaos" "${job[@]}" --folder="$name" "$@" > "$name.json" 2> "$name.err"
}

# The same; it has to end well.
hurt() { try "$@" || fail "$1: $(tail -3 "$1.err")"; }

# expect NAME FIELD...: that the report of NAME has each of them: '"kills":8'.
expect() {
  local name=$1 field
  shift
  for field in "$@"; do grep -qF "$field" "$name.json" || fail "$name: expected $field: $(cat "$name.json" "$name.err")"; done
}
