#!/bin/bash
# chaos: nodes that are away for longer than the suspicion time, their agent stopped or their cable pulled, cost steps and no bit.
# Where the kernel refuses networks, the other faults are done.
# Arguments: chaos, weft_run, forgetful_trainer.
set -u
chaos=$PWD/$1
weft_run=$PWD/$2
trainer=$PWD/$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/chaos.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# hurt NAME FLAGS...: the report is in NAME.json, the job's stderr in NAME/hurt.log. Ranks go on until somebody misses their agent, so
# there are steps enough for that.
flags=(--weft_run="$weft_run" --train_gpt="$trainer" --train_flags="" --log_format=json --suspicion_time=1s --save_every=20)
hurt() {
  local name=$1
  shift
  "$chaos" "${flags[@]}" --folder="$name" "$@" > "$name.json" 2> "$name.err" || fail "$name: $(tail -3 "$name.err")"
}
expect() {
  local name=$1 field
  shift
  for field in "$@"; do grep -qF "$field" "$name.json" || fail "$name: expected $field: $(cat "$name.json" "$name.err")"; done
}

# --- An agent that is stopped: others miss its node; of a single one the ranks miss the store, which the agent keeps.
hurt pause --kinds=pause --kills=1 --nodes=2
expect pause '"kills":1' '"recovered":1' '"equal":true' '"left_behind":0' '"skipped":0'
grep -q "was lost: no sign of life for 1 s: all workers start again" pause/hurt.log || fail "pause: nobody has missed it: $(cat pause/hurt.log)"
hurt alone --kinds=pause --kills=2
expect alone '"kills":2' '"recovered":2' '"equal":true' '"left_behind":0'

# --- A kernel that makes no networks.
if unshare --user --map-root-user true; then
  unshare --user --map-root-user bash -c 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"' refused "$chaos" "${flags[@]}" \
    --folder=refused --kills=2 --kinds=unplug,rank --nodes=2 > refused.json 2> refused.err || fail "no network: $(tail -3 refused.err)"
  expect refused '"kills":1' '"recovered":1' '"equal":true' '"left_behind":0' '"skipped":1'
  grep -q "skipped: unplug, 1 times: a node is unplugged in a network of its own, and the kernel refuses namespaces: " refused.err ||
    fail "no network: not said: $(cat refused.err)"
fi

# --- Two nodes with a cable each.
PATH=$dir "$chaos" "${flags[@]}" --folder=without --kinds=unplug --nodes=2 > without.json 2> without.err && fail "without iproute2: no error"
grep -q "there is no program 'ip': install the package iproute2\|the kernel refuses" without.err || fail "without iproute2: $(cat without.err)"
unplugged=("unplug --kinds=unplug --kills=1" "mixed --kinds=unplug,pause,rank --kills=6 --seed=2")
for run in "${unplugged[@]}"; do
  read -ra words <<< "$run"
  name=${words[0]}
  "$chaos" "${flags[@]}" --folder="$name" --nodes=2 "${words[@]:1}" > "$name.json" 2> "$name.err" || {
    grep "the kernel refuses" "$name.err" && echo "skipped: no networks" && break
    fail "$name: $(tail -3 "$name.err")"
  }
  grep "skipped: unplug" "$name.err" && break
  kills=${run#*--kills=}
  expect "$name" "\"kills\":${kills%% *}" "\"recovered\":${kills%% *}" '"equal":true' '"left_behind":0' '"skipped":0'
  grep -q "store: listens at 10.78.0.1:" "$name/hurt.log" || fail "$name: the job has no network of its own: $(cat "$name/hurt.log")"
  grep -q "was lost: no sign of life for 1 s" "$name/hurt.log" || fail "$name: nobody has missed the node: $(cat "$name/hurt.log")"
done
exit $((failures > 0))
