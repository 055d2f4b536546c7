#!/bin/bash
# overlap.sh looks for the Python of --peer before it measures anything: by its name, or from where the user stands.
# Argument: that script.
set -u
script=$PWD/$1
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/overlap_peer.XXXXXX")
failures=0

# expect MESSAGE PEER: what it ends with. Too few steps are told behind a peer that is not there.
expect() {
  local said
  said=$(BUILD_WORKING_DIRECTORY=$dir "$script" train_gpt weft_run report own_pieces --steps=1 "--peer=$2" 2>&1)
  [[ $said == "error: $1" ]] && return
  echo "FAILED: --peer=$2: expected '$1', got '$said'" >&2
  failures=$((failures + 1))
}
too_few="--steps=1: expected 4 or more, the first three are not counted"
missing="expected a Python, there is no such program"

expect "--peer=$dir/venv/bin/python: $missing" venv/bin/python
expect "--peer=$dir/none: $missing" "$dir/none"
expect "--peer=no_such_python: $missing" no_such_python
expect "--peer=$dir: $missing" "$dir"
mkdir -p "$dir/venv/bin"
ln -s "$(command -v sh)" "$dir/venv/bin/python"
expect "$too_few" venv/bin/python
expect "$too_few" "$dir/venv/bin/python"
expect "$too_few" sh
expect "$too_few" ""
exit $((failures > 0))
