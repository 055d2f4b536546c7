#!/bin/bash
# chaos: a job of three nodes that are killed, one or all, frozen for a while, and whose store and ranks are killed, ends with the bits of
# one that nobody hurt; restarted by its agents, and from outside alone.
# Arguments: chaos, weft_run, forgetful_trainer.
set -u
chaos=$PWD/$1
weft_run=$PWD/$2
forgetful=$PWD/$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/chaos.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

hurt() {
  local name=$1
  shift
  "$chaos" --weft_run="$weft_run" --log_format=json --suspicion_time=1s --folder="$name" "$@" > "$name.json" 2> "$name.err" ||
    fail "$name: $(tail -3 "$name.err")"
}
expect() {
  local name=$1 field
  shift
  for field in "$@"; do grep -qF "$field" "$name.json" || fail "$name: expected $field: $(cat "$name.json" "$name.err")"; done
}

for restarts in 3 0; do
  hurt "mixed$restarts" --train_gpt="$forgetful" --train_flags="" --nodes=3 --ranks=3 --kinds=host,hosts,store,rank,agent,freeze --kills=9 \
    --seed=8 --max_restarts=$restarts
  expect "mixed$restarts" '"kills":9' '"recovered":9' '"equal":true' '"left_behind":0'
done
for kind in host freeze; do grep -q "$kind of node [0-2] at step" mixed3.err || fail "no $kind of a node: $(cat mixed3.err)"; done
exit $((failures > 0))
