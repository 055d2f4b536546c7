#!/bin/bash
# chaos: a job whose processes are killed 20 times ends with the bits of one that nobody hurt, leaves nothing behind and goes on at
# once; whatever a trainer forgets to restore is found out.
# Arguments: chaos, weft_run, train_gpt, forgetful_trainer.
set -u
chaos=$PWD/$1
weft_run=$PWD/$2
train=$PWD/$3
forgetful=$PWD/$4
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/chaos.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# field FILE NAME: of the JSON object.
field() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1"; }

expect() {
  local file=$1 name=$2 value=$3
  [[ $(field "$file" "$name") == "$value" ]] || fail "expected $name $value: $(cat "$file")"
}

for i in $(seq 1 4000); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt

# --- A GPT with 57 MB of state, AdamW, dropout, shuffled data; ranks are killed.
"$chaos" --kills=20 --seed=1 --kinds=rank --log_format=json --weft_run="$weft_run" --train_gpt="$train" --folder=gpt \
  --train_flags="--mesh=dp=auto --plan=fsdp --layers=6 --heads=4 --dim=256 --context=32 --batch=4 --dropout=0.1 --shuffle=epoch \
    --eval_every=0 --sample=0 --data=$dir/text.txt" > gpt.json 2> gpt.err || fail "chaos: $(tail -3 gpt.err)"
for pair in kills:20 recovered:20 equal:true left_behind:0 in_save:6; do expect gpt.json "${pair%:*}" "${pair#*:}"; done
expect gpt.json skipped 0
grep -qE '"restart_s":[0-9.]*[1-9].*"meet_s":[0-9.]*[1-9].*"load_s":[0-9.]*[1-9]' gpt.json || fail "no parts: $(cat gpt.json)"
grep -q "^rank: .*target 5.0 s" gpt.err || fail "no target: $(tail -3 gpt.err)"
[[ $(field gpt.json in_restart) -ge 5 ]] || fail "fewer than a quarter in restarts: $(cat gpt.json)"
steps=(gpt/hurt/*step*)
[[ $(du -sk "${steps[-1]}" | cut -f1) -ge 50000 ]] || fail "less than 50 MB of state"
rm -rf gpt

# --- With snapshots in memory, from which it goes on as long as an agent lives.
"$chaos" --kills=6 --seed=3 --kinds=rank,agent --log_format=json --weft_run="$weft_run" --train_gpt="$train" --folder=snapshots \
  --train_flags="--mesh=dp=auto --plan=fsdp --layers=2 --heads=4 --dim=64 --context=32 --batch=4 --dropout=0.1 --shuffle=epoch \
    --eval_every=0 --sample=0 --snapshot_every=2 --data=$dir/text.txt" > snapshots.json 2> snapshots.err || fail "snapshots: $(tail -3 snapshots.err)"
for pair in kills:6 recovered:6 equal:true left_behind:0; do expect snapshots.json "${pair%:*}" "${pair#*:}"; done
grep -q "going on from the snapshot of step" snapshots/hurt.log || fail "it has never gone on from a snapshot"
rm -rf snapshots

# --- As `bazel run` starts it: programs are found from where it starts, whatever folder the user stands in.
mkdir elsewhere
(cd "$(dirname "$weft_run")/.." && BUILD_WORKING_DIRECTORY=$dir/elsewhere "$chaos" --kills=1 --ranks=3 --log_format=json \
  --weft_run=tools/weft_run --train_gpt="${forgetful#"$PWD/"}" --train_flags="") > run.json 2> run.err || fail "bazel run: $(tail -3 run.err)"
expect run.json equal true

# --- All kinds, restarted from outside alone, on three ranks.
small=(--weft_run="$weft_run" --train_gpt="$forgetful" --log_format=json --ranks=3)
"$chaos" "${small[@]}" --kills=10 --kinds=rank,agent,guard,both,stop --max_restarts=0 --train_flags="" > all.json 2> all.err ||
  fail "all kinds: $(tail -3 all.err)"
for pair in kills:10 recovered:10 equal:true left_behind:0; do expect all.json "${pair%:*}" "${pair#*:}"; done

# --- Ranks that are stopped while they start, and have met nobody yet.
for seed in 2 3; do
  "$chaos" "${small[@]}" --kills=4 --kinds=stop --seed=$seed --suspicion_time=1s --patience=20 --train_flags="" > stop.json 2> stop.err ||
    fail "stop: $(tail -3 stop.err)"
  for pair in kills:4 recovered:4 equal:true left_behind:0; do expect stop.json "${pair%:*}" "${pair#*:}"; done
done

# --- What is not restored shows.
for what in updates position; do
  "$chaos" "${small[@]}" --kills=4 --train_flags="--forget=$what" > "$what.json" 2> "$what.err" && fail "$what forgotten: not found out"
  expect "$what.json" equal false
  expect "$what.json" recovered 4
done

# --- Bad input: one line.
bad() {
  local expected=$1
  shift
  "$chaos" "$@" > bad.out 2> bad.err && fail "$*: expected an error"
  grep -qF -- "$expected" bad.err || fail "$*: expected '$expected' in: $(cat bad.err)"
}
bad "unknown kind of fault 'ranks': expected one of rank, stop, agent, guard, both, disk, flip, clock, store, host, hosts, freeze, pause, unplug" "${small[@]}" --kinds=ranks
for kind in freeze unplug; do bad "expected --nodes above 1" "${small[@]}" --kinds=rank,$kind; done
bad "expected at least one of each" "${small[@]}" --kills=0
bad "there is no program '/nonexistent'" "${small[@]}" --train_gpt=/nonexistent
bad "without any fault the job ends with exit code 1" "${small[@]}" --train_flags=--forgets=nothing
exit $((failures > 0))
