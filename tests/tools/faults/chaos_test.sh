#!/bin/bash
# chaos: a job whose processes are killed 20 times ends with the bits of one that nobody hurt, leaves nothing behind and goes on at
# once; whatever a trainer forgets to restore is found out.
# Arguments: chaos, weft_run, train_gpt, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1
forgetful=$root/$4

# field NAME FIELD: of its report.
field() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1.json"; }

for i in $(seq 1 4000); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt

# --- A GPT with 57 MB of state, AdamW, dropout, shuffled data; ranks are killed.
hurt gpt --kills=20 --seed=1 --kinds=rank --train_flags="--mesh=dp=auto --plan=fsdp --layers=6 --heads=4 --dim=256 --context=32 \
  --batch=4 --dropout=0.1 --shuffle=epoch --eval_every=0 --sample=0 --data=$dir/text.txt"
expect gpt '"kills":20' '"recovered":20' '"equal":true' '"left_behind":0' '"in_save":6' '"skipped":0'
grep -qE '"restart_s":[0-9.]*[1-9].*"meet_s":[0-9.]*[1-9].*"load_s":[0-9.]*[1-9]' gpt.json || fail "no parts: $(cat gpt.json)"
grep -q "^rank: .*target 5.0 s" gpt.err || fail "no target: $(tail -3 gpt.err)"
[[ $(field gpt in_restart) -ge 5 ]] || fail "fewer than a quarter in restarts: $(cat gpt.json)"
steps=(gpt/hurt/*step*)
[[ $(du -sk "${steps[-1]}" | cut -f1) -ge 50000 ]] || fail "less than 50 MB of state"
rm -rf gpt

# --- With snapshots in memory, from which it goes on as long as an agent lives. By this seed ranks are killed before the first
# save, so that there is nothing else to go on from, however fast steps and saves are.
# from_snapshot NAME: that it has gone on so.
from_snapshot() {
  grep -q "going on from the snapshot of step" "$1/hurt.log" ||
    fail "$1 has never gone on from a snapshot: $(cat "$1.err"; grep -v '^{' "$1/hurt.log")"
}
snapshots=(--kills=6 --seed=10 --save_every=12)
small="--layers=2 --heads=4 --dim=64 --context=32 --batch=32 --dropout=0.1 --shuffle=epoch --eval_every=0 --sample=0 --data=$dir/text.txt"
hurt snapshots "${snapshots[@]}" --kinds=rank,agent --train_flags="--mesh=dp=auto --plan=fsdp --snapshot_every=2 $small"
expect snapshots '"kills":6' '"recovered":6' '"equal":true' '"left_behind":0'
from_snapshot snapshots
rm -rf snapshots

# --- A pipeline: each rank has its own stage of the model, of the snapshots and of what is saved. Where ranks alone are killed,
# snapshots stay; with an agent they go.
for kinds in rank rank,agent; do
  hurt stages "${snapshots[@]}" --kinds=$kinds --train_flags="--mesh=pp=2 --microbatches=2 --snapshot_every=1 $small"
  expect stages '"kills":6' '"recovered":6' '"equal":true' '"left_behind":0'
  from_snapshot stages
  rm -rf stages
done

# --- As `bazel run` starts it: the tree's own programs are found from where it starts, others from where the user stands.
mkdir elsewhere
ln -s "$forgetful" elsewhere/forgetful_trainer
(cd "$root" && BUILD_WORKING_DIRECTORY=$dir/elsewhere "$chaos" --kills=1 --ranks=3 --log_format=json \
  --train_gpt=./forgetful_trainer --train_flags="") > run.json 2> run.err ||
  fail "bazel run: $(tail -3 run.err)"
expect run '"equal":true'

# --- All kinds, restarted from outside alone, on three ranks.
job+=(--train_gpt="$forgetful" --ranks=3)
hurt all --kills=10 --kinds=rank,agent,guard,both,stop --max_restarts=0
expect all '"kills":10' '"recovered":10' '"equal":true' '"left_behind":0'

# --- Ranks that are stopped while they start, and have met nobody yet.
for seed in 2 3; do
  hurt stop$seed --kills=4 --kinds=stop --seed=$seed --suspicion_time=1s --patience=20
  expect stop$seed '"kills":4' '"recovered":4' '"equal":true' '"left_behind":0'
done

# --- What is not restored shows.
for what in updates position; do
  try "$what" --kills=4 --train_flags="--forget=$what" && fail "$what forgotten: not found out"
  expect "$what" '"equal":false' '"recovered":4'
done

# --- Launchers that are killed while they meet, before there are ranks again.
# Whether one comes early enough is up to the moment.
for seed in 3 4 5 6 7; do
  hurt meeting$seed --kills=12 --kinds=agent,guard,both --seed=$seed
  expect meeting$seed '"kills":12' '"recovered":12' '"equal":true' '"left_behind":0'
  grep -q "before its ranks were there" meeting$seed.err && break
done
grep -q "before its ranks were there" meeting?.err || fail "meeting: none was killed before there were ranks: $(cat meeting?.err)"

# --- A step that comes later than its target is an error on demand alone.
cat > slow << END
#!/bin/bash
[[ \${TORCHELASTIC_RESTART_COUNT:-0} == 0 ]] || sleep 5.5
exec '$forgetful' "\$@"
END
chmod +x slow
hurt late --kills=1 --ranks=2 --train_gpt="$dir/slow"
expect late '"within_target":false' '"equal":true'
try held --kills=1 --ranks=2 --train_gpt="$dir/slow" --hold_targets && fail "held: a target was missed: expected exit code 1"
expect held '"within_target":false' '"equal":true' '"left_behind":0'

# --- Bad input: one line.
bad() {
  local expected=$1
  shift
  "$chaos" "${job[@]}" "$@" > bad.out 2> bad.err && fail "$*: expected an error"
  grep -qF -- "$expected" bad.err || fail "$*: expected '$expected' in: $(cat bad.err)"
}
bad "unknown kind of fault 'ranks': expected one of rank, stop, agent, guard, both, disk, flip, short, clock, store, host, hosts, freeze, pause, unplug" --kinds=ranks
for kind in freeze unplug; do bad "expected --nodes above 1" --kinds=rank,$kind; done
bad "expected at least one of each" --kills=0
# Before the job has been trained in peace.
for patience in 0 -1; do bad "--patience=$patience: expected seconds of at least 1" --patience=$patience; done
for away in -1s inf 25h; do bad "--store_away=$away: expected 0 to 24h" --store_away=$away; done
bad "there is no program '/nonexistent'" --train_gpt=/nonexistent
bad "without any fault the job ends with exit code 1" --train_flags=--forgets=nothing

# --- A folder of its own stays if there is something in it that tells what was wrong, and only then.
mkdir empty
export TMPDIR=$dir/empty
bad "expected at least one of each" --kills=0
bad "expected --nodes above 1" --kinds=freeze
[[ -z $(ls empty) ]] || fail "an error leaves $(find empty)"
bad "without any fault the job ends with exit code 1" --train_flags=--forgets=nothing
grep -qs "forgets" empty/chaos-*/calm.log || fail "the log has gone: $(find empty)"
exit $((failures > 0))
