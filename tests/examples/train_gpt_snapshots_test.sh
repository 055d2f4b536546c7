#!/bin/bash
# train_gpt --snapshot_every under weft_run, on two nodes of this machine: a rank, all ranks of a node, a node with its agent are
# killed; the run goes on from the last snapshot, to the bit as if nothing had happened; nothing is left behind.
# Arguments: train_gpt, weft_run.
set -u
train=$PWD/$1
weft_run=$PWD/$2
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_gpt.XXXXXX")
cd "$dir" || exit 1
failures=0
started=()  # guards

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}
clean_up() {
  for pid in "${started[@]}"; do kill -KILL "$pid" $(pgrep -P "$pid") 2> /dev/null; done
}
trap clean_up EXIT

for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
steps=400  # of 5 ms: the script may be held up for a second before it kills what trains
every=5
nodes=2
mesh=dp=4
flags=(--data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=8 --dropout=0.1 --dtype=f64 --log_format=json --sample=0
  --eval_every=0 --mesh=dp=4 --plan=fsdp --threads=1 "--steps=$steps")
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }
# Of a file of --save, without its head, which has the flags.
elements() { tail -c "+$((9 + $(od -An -tu8 -N8 "$1")))" "$1"; }
# Names in /dev/shm that are Weft's: other tests may have theirs there.
shared_names() { find /dev/shm -mindepth 1 -iname '*weft*' 2> /dev/null | sort; }
shm_before=$(shared_names)

"$train" "${flags[@]}" --save=straight.safetensors > straight.json 2> err || fail "straight: $(tail -1 err)"
losses straight.json > straight
[[ $(wc -l < straight) == "$steps" ]] || fail "straight: $(wc -l < straight) steps"

free_port() {
  local port
  while port=$((20000 + RANDOM % 10000)); (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do :; done
  echo "$port"
}
# start_node NUMBER: a node of the job `name`; $guard is its weft_run.
start_node() {
  "$weft_run" "--nnodes=$nodes" --nproc-per-node=2 "--rdzv-endpoint=127.0.0.1:$port" "--rdzv-id=$name" --max-restarts=1 \
    --rdzv-conf=join_timeout=60 "$train" "${flags[@]}" "--mesh=$mesh" "--checkpoint_dir=$name" --save_every=0 "--snapshot_every=$every" \
    "--save=$dir/$name.safetensors" > "$name.$1.json" 2> "$name.$1.err" &
  guard=$!
  started+=("$guard")
}
start_job() {
  name=$1
  port=$(free_port)
  start_node 0
  guard0=$guard
  # The first to come is node 0, which keeps the store and has rank 0. It says that it is there when it has waited for three seconds.
  until grep -qs "weft_run: waiting: 1 of" "$name.0.err"; do
    kill -0 "$guard0" 2> /dev/null || break
    sleep 0.02
  done
  start_node 1
  guard1=$guard
}
agent_of() { pgrep -P "$1"; }
ranks_of() { pgrep -P "$(agent_of "$1")"; }
step_now() { losses "$name.0.json" | tail -1 | cut -d' ' -f1; }
await_step() {
  until [[ $(step_now) -ge $1 ]]; do
    kill -0 "$guard0" 2> /dev/null || return 1
    sleep 0.01
  done
}
# What a kill may cost: the steps since the last snapshot, and those of one that was not whole yet.
check_gone_on() {
  local killed_at=$1 from
  from=$(sed -n 's/.*going on from the snapshot of step \([0-9]*\) of generation.*/\1/p' "$name.0.err" | tail -1)
  [[ -n $from ]] || { fail "$name: it did not go on from a snapshot: $(tail -5 "$name.0.err")"; return; }
  ((from % every == 0 && from >= killed_at - 2 * every)) || fail "$name: killed at step $killed_at, went on from $from"
}
check_end() {
  wait "$guard0" || fail "$name: node 0: $(tail -5 "$name.0.err")"
  diff straight <(losses "$name.0.json" | sort -n | uniq) > /dev/null || fail "$name: the losses differ from those of the run in peace"
  cmp <(elements straight.safetensors) <(elements "$name.safetensors") || fail "$name: the weights differ from those of the run in peace"
  [[ $(cd "$name" && echo step-*) == "$(printf 'step-%09d' "$steps")" ]] || fail "$name: steps: $(ls "$name")"
}

# --- A rank, of the node that has rank 0 and of the other; then all of a node. Each time more than --max-restarts=1 allows
# without a snapshot between them.
start_job ranks
await_step 30 || fail "ranks: $(tail -5 ranks.0.err)"
grep -q "snapshots every $every steps take .* of copies on other nodes" ranks.0.err || fail "ranks: no cost: $(tail -3 ranks.0.err)"
for at in 60 100 140; do
  await_step "$at" || break
  case $at in
    60) victims=$(ranks_of "$guard0" | tail -1) ;;
    100) victims=$(ranks_of "$guard1" | head -1) ;;
    140) victims=$(ranks_of "$guard1") ;;
  esac
  at=$(step_now)
  lines=$(grep -c "going on from the snapshot" ranks.0.err)
  # shellcheck disable=SC2086  # several
  kill -KILL $victims || fail "ranks: nobody to kill at step $at"
  until [[ $(grep -c "going on from the snapshot" ranks.0.err) -gt $lines ]]; do
    kill -0 "$guard0" 2> /dev/null || break
    sleep 0.02
  done
  check_gone_on "$at"
done
wait "$guard1" || fail "ranks: node 1: $(tail -5 ranks.1.err)"
check_end

# --- A node with its agent: what it had is on the other node. Another node takes its place.
start_job machine
await_step 80 || fail "machine: $(tail -5 machine.0.err)"
at=$(step_now)
agent=$(agent_of "$guard1")
# shellcheck disable=SC2046  # several
kill -KILL "$guard1" "$agent" $(ranks_of "$guard1")
wait "$guard1" 2> /dev/null
start_node 2
check_end
check_gone_on "$at"
wait "$guard" || fail "machine: node 2: $(tail -5 machine.2.err)"

# --- Nobody takes its place: what is left goes on with half of the ranks, as near as rounding is.
nodes=1:2
mesh=dp=auto
start_job shrunk
await_step 80 || fail "shrunk: $(tail -5 shrunk.0.err)"
at=$(step_now)
# shellcheck disable=SC2046  # several
kill -KILL "$guard1" "$(agent_of "$guard1")" $(ranks_of "$guard1")
wait "$guard1" 2> /dev/null
wait "$guard0" || fail "shrunk: $(tail -5 shrunk.0.err)"
check_gone_on "$at"
grep -q "dp=2: 2 ranks" shrunk.0.err shrunk.0.json || fail "shrunk: not on two ranks"
from=$(sed -n 's/.*going on from the snapshot of step \([0-9]*\) of.*/\1/p' shrunk.0.err)
paste -d' ' <(tail -n "+$((from + 1))" straight) <(losses shrunk.0.json | tail -n "$((steps - from))") |
  awk '{ for (i = 1; i <= 3; i++) { d = $i - $(i + 3); if (d < 0) d = -d; if (d > 1e-9 * $i) bad = 1 } } END { exit bad || NR == 0 }' ||
  fail "shrunk: the losses are not those of the run in peace"

# --- Nothing is left: no process, no shared memory, no temporary file of a save.
pgrep -f "$dir" > /dev/null && fail "left running: $(pgrep -af "$dir")"
[[ $(shared_names) == "$shm_before" ]] || fail "left in /dev/shm: $(shared_names)"
[[ $(find . -name '*.tmp' | wc -l) == 0 ]] || fail "left behind: $(find . -name '*.tmp')"

# --- Without a folder, or an agent.
"$train" "${flags[@]}" --snapshot_every=2 > none.json 2> err && fail "no error without a folder"
grep -q -- "--snapshot_every=2: expected --checkpoint_dir, too" err || fail "without a folder: $(tail -1 err)"
"$train" "${flags[@]}" --snapshot_every=2 --checkpoint_dir=alone > none.json 2> err && fail "no error without an agent"
grep -q -- "--snapshot_every=2: nobody keeps memory that outlives the ranks; start the program by weft_run" err ||
  fail "without an agent: $(tail -1 err)"

if [[ $failures -gt 0 ]]; then
  echo "$failures failed" >&2
  exit 1
fi
rm -rf "$dir"
