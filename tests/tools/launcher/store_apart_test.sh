#!/bin/bash
# A job of two nodes whose store is a process apart, killed by SIGKILL and begun again under the training and under a restart
# of the ranks: the losses are those of a job in peace. And without a store apart its loss ends the job with one line.
# Arguments: weft_run, train_gpt.
set -u
weft_run=$PWD/$1
train=$PWD/$2
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/store_apart.XXXXXX")
cd "$dir" || exit 1
store=0
trap '[[ $store == 0 ]] || kill -9 $store 2> /dev/null' EXIT
fail() {
  echo "FAILED: $*" >&2
  for file in *.err; do echo "--- $file"; tail -n 6 "$file"; done >&2
  exit 1
}

# Waits until a file has that many lines with that text.
await() {
  local file=$1 text=$2 count=$3
  for _ in $(seq 1 1200); do
    [[ $(grep -c -- "$text" "$file" 2> /dev/null) -ge $count ]] && return 0
    sleep 0.05
  done
  fail "no '$text' in $file"
}

begin_store() {
  "$weft_run" store --dir="$dir/kept" --port="$1" --host=127.0.0.1 > store.out 2>> store.err &
  store=$!
  await store.out : 1
}
kill_store() {
  kill -9 $store
  wait $store 2> /dev/null
}
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$@" | sort -n | uniq; }

for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
# A step takes less than a millisecond: as many as this script may be held up for, on a busy machine, before it kills what trains.
steps=1600
training=("$train" --data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=4 --dropout=0.1 --log_format=json
  --sample=0 --eval_every=0 --mesh=dp=2 "--steps=$steps" --save_every=50)
export WEFT_STORE_TOKEN=secret

"$weft_run" --nproc-per-node=2 "${training[@]}" --checkpoint_dir=peace > peace.out 2> peace.err || fail "in peace"
[[ $(losses peace.out | wc -l) == "$steps" ]] || fail "expected $steps steps"

begin_store 0
address=$(cat kept/address)
port=${address##*:}
# In the background alone: its process is the guard.
node() { exec "$weft_run" --store="$address" --nnodes=2 --max-restarts=3 --rdzv-id=tale "${training[@]}" --checkpoint_dir=war; }
node > first.out 2> first.err &
first=$!
node > second.out 2> second.err &
second=$!
# Rank 0 is on either.
for step in 20 120; do
  for _ in $(seq 1 1200); do
    [[ $(cat first.out second.out | grep -c '"step"') -ge $step ]] && break
    sleep 0.05
  done
  kill_store
  sleep 0.3
  begin_store "$port"
done
# A rank dies while the store is away; the ranks begin again through the one that comes.
for _ in $(seq 1 1200); do
  [[ $(cat first.out second.out | grep -c '"step"') -ge 160 ]] && break
  sleep 0.05
done
kill_store
worker=$(pgrep -P "$(pgrep -P $first | head -1)" | head -1)
kill -9 "$worker" || fail "no worker to kill"
sleep 0.5
begin_store "$port"
wait $first || fail "the first node"
wait $second || fail "the second node"
[[ $(cat first.err second.err | grep -c "all workers start again") == 2 ]] || fail "one restart is told by each node"
diff <(losses peace.out) <(losses first.out second.out) > /dev/null || fail "the losses differ from those in peace"

# The same job once more is another one, whose keys are its own: it finds its checkpoint complete.
node > third.out 2> third.err &
first=$!
node > fourth.out 2> fourth.err &
second=$!
wait $first || fail "again: the first node"
wait $second || fail "again: the second node"

# Nodes that are all killed with their workers go on under the same name.
rm -rf war
node > fifth.out 2> fifth.err &
first=$!
node > sixth.out 2> sixth.err &
second=$!
for _ in $(seq 1 1200); do
  [[ $(cat fifth.out sixth.out | grep -c '"step"') -ge 60 ]] && break
  sleep 0.05
done
# The guards, and then the agents: the workers die with them.
agents="$(pgrep -P $first) $(pgrep -P $second)"
# shellcheck disable=SC2086
kill -9 $first $second $agents
wait $first $second 2> /dev/null
[[ $(losses fifth.out sixth.out | wc -l) -lt $steps ]] || fail "the nodes had trained to the end before they were killed"
node > seventh.out 2> seventh.err &
first=$!
node > eighth.out 2> eighth.err &
second=$!
wait $first || fail "after the loss of all: the first node"
wait $second || fail "after the loss of all: the second node"
diff <(losses peace.out) <(losses fifth.out sixth.out seventh.out eighth.out) > /dev/null ||
  fail "after the loss of all nodes the losses differ"
kill -TERM $store
wait $store || fail "the store does not end in good order"
store=0

# Whom it serves: without a token this machine alone, with one every machine, as the commands that --help prints need.
listens_at() {
  local hex
  printf -v hex '%04X' "$1"
  awk -v port=":$hex\$" '$4 == "0A" && $2 ~ port { sub(/:.*/, "", $2); printf "%s", $2 }' /proc/net/tcp /proc/net/tcp6
}
for token in "" secret; do
  WEFT_STORE_TOKEN=$token "$weft_run" store --dir="alone$token" --port=0 > "alone$token.out" 2> "alone$token.err" &
  store=$!
  await "alone$token.out" : 1
  where=$(listens_at "$(sed 's/.*://' "alone$token.out")")
  if [[ -z $token ]]; then
    [[ $where == *0100007F ]] || fail "without a token it listens at '$where'"
  else
    [[ $where == *00000000 ]] || fail "with a token it listens at '$where'"
  fi
  kill -TERM $store
  wait $store || fail "the store does not end in good order"
  store=0
done
"$weft_run" store --help > help.out
grep -B1 "weft_run store --dir=/var" help.out | grep -q "export WEFT_STORE_TOKEN=" || fail "--help names no token: $(cat help.out)"

# A store that is not there, and flags that cannot be.
"$weft_run" --store="$address" --rdzv-conf=join_timeout=1 true > no.out 2> no.err && fail "joined no store"
grep -q "there is no store at 127.0.0.1:$port" no.err || fail "an absent store: $(cat no.err)"
"$weft_run" store > no.out 2> no.err && fail "a store without a folder"
grep -q "weft_run store needs --dir=DIR" no.err || fail "no folder: $(cat no.err)"
timeout 20 "$weft_run" store --dir=long --suspicion_time=25h 2> no.err && fail "a suspicion time of 25 h was taken"
grep -q "error: --suspicion_time=25h: expected 500ms to 24h" no.err || fail "a suspicion time of 25 h: $(cat no.err)"
"$weft_run" store --help | grep -q -- "--sync_each" || fail "no help"
rm -rf "$dir"
