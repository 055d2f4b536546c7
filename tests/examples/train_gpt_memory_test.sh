#!/bin/bash
# train_gpt --recompute=auto: ranks that run out of memory start again and recompute; as threads, under weft_run, and as what is left
# of a job that has lost a node. No loss and no weight changes by that.
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
flags=(--data=text.txt --layers=4 --heads=4 --dim=32 --context=64 --batch=32 --dropout=0.1 --dtype=f64 --log_format=json --sample=0
  --eval_every=0 --threads=1)
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }
# Of a file of --save, without its head, which has the flags.
elements() { tail -c "+$((9 + $(od -An -tu8 -N8 "$1")))" "$1"; }
same() {
  diff <(losses "$1.json" | sort -n | uniq) <(losses "$2.json" | sort -n | uniq) > /dev/null || fail "$2: the losses differ from those of $1"
  cmp <(elements "$1.safetensors") <(elements "$2.safetensors") || fail "$2: the weights differ from those of $1"
}

"$train" "${flags[@]}" --mesh=dp=2 --steps=12 --save=calm.safetensors > calm.json 2> err || fail "calm: $(tail -1 err)"
[[ $(losses calm.json | wc -l) == 12 ]] || fail "calm: $(losses calm.json | wc -l) steps"

limit=0.019  # GB of a rank, of which two ranks need more and, if they recompute, less

# --- Threads go on at once.
"$train" "${flags[@]}" --mesh=dp=2 --steps=12 --memory_gb=$limit --save=threads.safetensors > threads.json 2> threads.err ||
  fail "threads: $(tail -1 threads.err)"
grep -q "weft: rank [01]: out of memory on cpu: cannot allocate .* cap 19000000 bytes.*; going on with --recompute=selective" threads.err ||
  fail "threads: $(cat threads.err)"
same calm threads

# --- Processes, when weft_run has started them again.
"$weft_run" --nproc-per-node=2 --max-restarts=1 "$train" "${flags[@]}" --mesh=dp=2 --steps=12 --memory_gb=$limit \
  --save="$dir/processes.safetensors" > processes.json 2> processes.err || fail "processes: $(tail -5 processes.err)"
grep -q "ranks that are started again go on with --recompute=selective" processes.err || fail "processes: $(cat processes.err)"
grep -q "weft: going on with --recompute=selective: ranks of this run had too little memory" processes.err ||
  fail "processes: no word of it: $(cat processes.err)"
same calm processes

# --- Nothing else is done where the user has said what is: an error with the numbers.
"$train" "${flags[@]}" --mesh=dp=2 --steps=2 --memory_gb=$limit --recompute=none > none.json 2> none.err && fail "none: expected an error"
grep -q "error: rank [01]: out of memory on cpu: cannot allocate .* cap 19000000 bytes; in use: saved " none.err || fail "none: $(cat none.err)"
"$train" "${flags[@]}" --mesh=dp=2 --steps=2 --memory_gb=0.002 > least.json 2> least.err && fail "least: expected an error"
grep -q "error: rank [01]: out of memory on cpu.*; --recompute=full saves most already" least.err || fail "least: $(cat least.err)"

# --- A job of two nodes that loses one: twice as much for the rank that is left, more than it may take.
free_port() {
  local port
  while port=$((20000 + RANDOM % 10000)); (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do :; done
  echo "$port"
}
port=$(free_port)
# start_node NUMBER: $guard is its weft_run.
start_node() {
  "$weft_run" --nnodes=1:2 --nproc-per-node=1 "--rdzv-endpoint=127.0.0.1:$port" --rdzv-id=shrunk --max-restarts=3 \
    --rdzv-conf=join_timeout=60 "$train" "${flags[@]}" --mesh=dp=auto --steps=40 --memory_gb=0.025 --checkpoint_dir="$dir/shrunk" \
    --save_every=5 "--save=$dir/shrunk.safetensors" > "shrunk.$1.json" 2> "shrunk.$1.err" &
  guard=$!
  started+=("$guard")
}
start_node 0
guard0=$guard
# The first to come is node 0, which has rank 0. It says that it is there when it has waited for three seconds.
until grep -qs "weft_run: waiting: 1 of" shrunk.0.err; do
  kill -0 "$guard0" 2> /dev/null || break
  sleep 0.02
done
start_node 1
until [[ $(losses shrunk.0.json | tail -1 | cut -d' ' -f1) -ge 12 ]]; do
  kill -0 "$guard0" 2> /dev/null || break
  sleep 0.01
done
grep -q "going on with" shrunk.0.err && fail "shrunk: two ranks had too little memory: $(cat shrunk.0.err)"
agent=$(pgrep -P "$guard")
# shellcheck disable=SC2046  # several
kill -KILL "$guard" "$agent" $(pgrep -P "$agent")
wait "$guard" 2> /dev/null
wait "$guard0" || fail "shrunk: $(tail -5 shrunk.0.err)"
grep -q "weft: going on with --recompute=\(selective\|full\): ranks of this run had too little memory" shrunk.0.err ||
  fail "shrunk: $(cat shrunk.0.err)"
"$train" "${flags[@]}" --mesh=dp=2 --steps=40 > whole.json 2> err || fail "whole: $(tail -1 err)"
# On one rank sums have another order: as near as rounding is.
paste -d' ' <(losses whole.json) <(losses shrunk.0.json | sort -n -u -k1,1) |
  awk '$1 != $4 || ($2 - $5) ^ 2 > 1e-20 * $2 ^ 2 { bad = 1 } END { exit bad || NR != 40 }' ||
  fail "shrunk: the losses differ from those of two ranks in peace: $(paste -d' ' <(losses whole.json) <(losses shrunk.0.json | sort -n -u -k1,1) | tail -3)"
exit $((failures > 0))
