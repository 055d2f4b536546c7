#!/bin/bash
# train_gpt with --checkpoint_dir: it goes on by itself, on any mesh, plan and number of ranks, threads and processes; what
# may not change is said with both values; a kill at any time loses nothing but steps.
# Arguments: train_gpt, weft_run.
set -u
train=$PWD/$1
weft_run=$PWD/$2
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_gpt.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

for i in $(seq 1 400); do echo "line $i of the tale, $((i * i % 97)) and so on"; done > text.txt
small=(--data=text.txt --layers=2 --heads=4 --dim=32 --context=16 --batch=8 --dropout=0.1 --dtype=f64)
quiet=(--log_format=json --sample=0 --eval_every=0)

# What must not depend on how a run came about: step, loss, gradient norm.
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }
near() {  # the losses and norms of two runs, by step
  paste -d' ' "$1" "$2" | awk '{ for (i = 2; i <= 3; i++) { d = $i - $(i + 3); if (d < 0) d = -d; if (d > 1e-9 * $i) bad = 1 } }
                               END { exit bad || NR == 0 }'
}
steps_in() { (cd "$1" && echo step-*); }

"$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2,tp=2 --steps=12 > straight.json 2> err || fail "straight: $(tail -1 err)"

# --- Saved every two steps, three stay; to the bit as if nothing had been saved; started again it does nothing more.
"$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2,tp=2 --steps=12 --checkpoint_dir=runs/a --save_every=2 > saved.json 2> err ||
  fail "saved: $(tail -1 err)"
diff <(losses straight.json) <(losses saved.json) > /dev/null || fail "saving changes a loss"
[[ $(steps_in runs/a) == "step-000000008 step-000000010 step-000000012" ]] || fail "steps: $(steps_in runs/a)"
[[ $(cat runs/a/latest) == step-000000012 ]] || fail "latest: $(cat runs/a/latest)"
"$train" --checkpoint_dir=runs/a "${quiet[@]}" --mesh=dp=2 > again.json 2> err || fail "again: $(tail -1 err)"
[[ ! -s again.json ]] || fail "a run that is over trains on: $(cat again.json)"

# --- A run that a file of --print_config began, which names every flag, goes on from its folder and from its file.
"$train" "${quiet[@]}" --data=text.txt --layers=1 --heads=1 --dim=8 --batch=2 --mesh= --steps=2 --print_config > run.json || fail "--print_config"
for begins in --checkpoint_dir=printed --save=printed.safetensors; do
  "$train" --config=run.json $begins > half.json 2> err || fail "$begins, by a file: $(tail -1 err)"
  "$train" --config=run.json --steps=3 "${begins/--save/--resume}" > more.json 2> err || fail "$begins, resumed by a file: $(tail -1 err)"
  [[ $(losses more.json | cut -d' ' -f1) == 3 ]] || fail "$begins, resumed by a file: $(cat more.json)"
done

# --- It goes on by itself: to the bit on the same mesh; within rounding on others, with other plans and stages; as processes.
cut_off() { rm -rf cut; "$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2,tp=2 --steps=6 --checkpoint_dir=cut > cut.json 2> err || fail "cut: $(tail -1 err)"; }
cut_off
"$train" --checkpoint_dir=cut "${quiet[@]}" --mesh=dp=2,tp=2 --steps=12 > more.json 2> err || fail "more: $(tail -1 err)"
diff <(losses straight.json | tail -6) <(losses more.json) || fail "resumed on the same mesh differs"
while read -r mesh; do
  cut_off
  # shellcheck disable=SC2086  # flags
  "$train" --checkpoint_dir=cut "${quiet[@]}" --mesh=$mesh --steps=12 > more.json 2> err || fail "$mesh: $(tail -1 err)"
  near <(losses straight.json | tail -6) <(losses more.json) || fail "resumed on $mesh differs"
done << 'MESHES'
dp=4 --plan=fsdp --threads=1
tp=2 --save_in_background=false
pp=2,dp=2 --microbatches=2 --plan=fsdp
replica=2,shard=2 --plan=hsdp --save_incremental
MESHES
cut_off
"$weft_run" --nproc-per-node=4 "$train" --checkpoint_dir=cut "${quiet[@]}" --mesh=dp=2,tp=2 --steps=12 --save_every=3 > more.json 2> err ||
  fail "processes: $(tail -3 err)"
diff <(losses straight.json | tail -6) <(losses more.json) || fail "resumed as processes differs"
[[ $(steps_in cut) == "step-000000006 step-000000009 step-000000012" ]] || fail "steps of processes: $(steps_in cut)"
# Under ddp and tp the first two own everything.
[[ $(cd cut/step-000000012 && echo *) == "manifest.json rank-00000.safetensors rank-00001.safetensors" ]] || fail "files: $(ls cut/step-000000012)"

# --- Ranks that the mesh has no place for are spares.
cut_off
"$weft_run" --nproc-per-node=3 "$train" --checkpoint_dir=cut "${quiet[@]}" --mesh_choices="dp=2" --steps=12 > more.json 2> err ||
  fail "spares: $(tail -3 err)"
near <(losses straight.json | tail -6) <(losses more.json) || fail "resumed with a spare differs"
grep -q "rank 2 is a spare" err || fail "no spare: $(cat err)"

# --- Killed at any time, started again and again until it is through: the same losses as those of a run that was not.
: > joined
for ((i = 0; i < 30; i++)); do
  "$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2,tp=2 --steps=12 --checkpoint_dir=killed --save_every=1 > part.json 2> err &
  pid=$!
  # Later and later, so that a slow machine comes to a save, too.
  after=$((RANDOM % 25 + 5 + 5 * i))
  sleep "$((after / 100)).$(printf %02d $((after % 100)))"
  kill -KILL $pid 2> /dev/null
  wait $pid 2> /dev/null
  status=$?
  losses part.json >> joined
  [[ $status == 0 ]] && break
done
[[ $status == 0 ]] || "$train" "${small[@]}" --checkpoint_dir=killed "${quiet[@]}" --mesh=dp=2,tp=2 --steps=12 > part.json 2> err
losses part.json >> joined
diff <(losses straight.json) <(sort -un joined) || fail "killed and resumed differs"
[[ $(find killed -name '*.tmp' | wc -l) == 0 ]] || fail "left behind: $(find killed -name '*.tmp')"

# --- A signal: the step is saved.
"$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2 --steps=100000 --checkpoint_dir=stopped --save_every=0 > stopped.json 2> /dev/null &
pid=$!
until [[ $(wc -l < stopped.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid || break; done
kill -TERM $pid
wait $pid
[[ $? == 143 ]] || fail "expected exit code 143 after SIGTERM"
[[ $(steps_in stopped) == "$(printf 'step-%09d' "$(losses stopped.json | wc -l)")" ]] || fail "after SIGTERM: $(steps_in stopped)"

# --- The newest step is broken: the run goes on from the one before, if what is not given was the same; given, it may have been another.
"$train" "${small[@]}" "${quiet[@]}" --mesh= --steps=2 --checkpoint_dir=given > none.json 2> err || fail "given: $(tail -1 err)"
longer=("${quiet[@]}" --mesh= --steps=4 --lr=2e-3 --weight_decay=0.2 --checkpoint_dir=given)
"$train" "${longer[@]}" > half.json 2> err || fail "given, resumed: $(tail -1 err)"
truncate -s 100 given/step-000000004/rank-00000.safetensors
"$train" "${quiet[@]}" --mesh= --checkpoint_dir=given > none.json 2> err && fail "a broken step, made with other flags: no error"
grep -q "step 2, which was loaded, was made with --lr=" err || fail "a broken step, made with other flags: $(tail -1 err)"
"$train" "${longer[@]}" > more.json 2> err || fail "a broken step, with its flags given: $(tail -1 err)"
diff <(losses half.json) <(losses more.json) || fail "a broken step, with its flags given: other losses"

# --- A file that cannot be written leaves the folder its last step.
mkdir no.safetensors.tmp
"$train" "${small[@]}" "${quiet[@]}" --mesh= --steps=3 --checkpoint_dir=beside --save_every=0 --save=no.safetensors > none.json 2> err && fail "a file that cannot be written is no error"
grep -q "no.safetensors" err || fail "a file that cannot be written: $(tail -1 err)"
[[ $(steps_in beside) == step-000000003 ]] || fail "beside a file that cannot be written: $(ls beside)"

# --- A folder that cannot be written leaves the file, from which the run goes on.
"$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2 --steps=100000 --checkpoint_dir=lost --save_every=0 --save=left.safetensors > lost.json 2> err &
pid=$!
until [[ $(wc -l < lost.json) -ge 5 ]]; do sleep 0.05; kill -0 $pid || break; done
mv lost moved
: > lost
kill -TERM $pid
wait $pid
[[ $? == 1 ]] || fail "expected exit code 1 where a folder cannot be written"
tail -1 err | grep -q "^error: .*lost" || fail "a folder that cannot be written: $(tail -1 err)"
steps=$(losses lost.json | wc -l)
"$train" "${quiet[@]}" --mesh=dp=2 --steps=$((steps + 1)) --resume=left.safetensors > more.json 2> err || fail "a file beside a lost folder: $(tail -1 err)"
[[ $(losses more.json | cut -d' ' -f1) == $((steps + 1)) ]] || fail "a file beside a lost folder: $(cat more.json)"

# --- What may not change: one line with both values. The batch may, by a policy.
bad() {
  local expected=$1
  shift
  "$train" --checkpoint_dir=runs/a "$@" > bad.out 2> bad.err && fail "$*: expected an error"
  [[ $(grep -c '' bad.err) == 1 ]] || fail "$*: expected one line on stderr, got: $(cat bad.err)"
  grep -qF -- "$expected" bad.err || fail "$*: expected '$expected' in: $(cat bad.err)"
}
bad "--layers=3: the checkpoint to resume from was made with '2'" --layers=3
bad "--dtype=f32: the checkpoint to resume from was made with 'f64'" --dtype=f32
bad "--seed=1: the checkpoint to resume from was made with '1337'" --seed=1
bad "--tokenizer=chars: the checkpoint to resume from was made with 'bytes'" --tokenizer=chars
bad "--batch=4: the checkpoint to resume from was made with '8'; leave the flag out, or say --batch_policy=linear or sqrt" --batch=4
bad "--batch_policy=half: expected one of keep, linear, sqrt" --batch_policy=half
bad "it was trained on another text" --data=straight.json
bad "--save_every=-1: expected 0 or more" --save_every=-1
rates() { sed -n 's/.*"lr":\([^,]*\),.*/\1/p' "$1" | tail -1; }
"$train" --checkpoint_dir=runs/a "${quiet[@]}" --steps=14 --batch=16 --batch_policy=linear > linear.json 2> err || fail "linear: $(tail -1 err)"
awk -v a="$(rates saved.json)" -v b="$(rates linear.json)" 'BEGIN { exit !(b / 14 > 1.99 * a / 12 && b / 14 < 2.01 * a / 12) }' ||
  fail "the rate $(rates saved.json) becomes $(rates linear.json)"
"$train" --checkpoint_dir=runs/a "${quiet[@]}" --steps=15 --batch=16 > linear.json 2> err || fail "the batch is not kept: $(tail -1 err)"

# --- A batch that follows the number of ranks: half of them have half of it, at half the rate, as if both had been asked for.
rule=("${small[@]}" "${quiet[@]}" --lr=1e-3 --batch_policy=linear --batch_ranks=4 --plan=fsdp)
follows() { "$train" "${rule[@]}" "$@" 2> err || fail "$*: $(tail -1 err)"; }
follows --checkpoint_dir=follows --mesh=dp=4 --steps=4 > four.json
cp -r follows asked
cp -r follows elastic
follows --checkpoint_dir=follows --mesh=dp=2 --steps=4 > none.json
[[ ! -s none.json ]] || fail "it trains on: $(cat none.json)"
follows --checkpoint_dir=follows --mesh=dp=2 --steps=8 > two.json
grep -q "^batch       4 instead of 8, for so many ranks" err || fail "the batch is not said: $(cat err)"
"$train" --checkpoint_dir=asked "${quiet[@]}" --plan=fsdp --mesh=dp=2 --steps=8 --batch=4 --lr=5e-4 --min_lr=5e-5 --batch_policy=linear --batch_ranks=0 \
  > asked.json 2> err || fail "asked: $(tail -1 err)"
diff <(losses two.json) <(losses asked.json) || fail "half of the ranks have not half of the batch"
"$weft_run" --nproc-per-node=2 "$train" "${rule[@]}" --checkpoint_dir=elastic --mesh=dp=auto --steps=8 > elastic.json 2> err || fail "elastic: $(tail -3 err)"
diff <(losses two.json) <(losses elastic.json) || fail "a mesh that follows the job's ranks has another batch"
[[ $(losses two.json | wc -l) == 4 ]] || fail "two ranks have made other steps: $(losses two.json)"
follows --checkpoint_dir=follows --mesh=dp=4 --steps=10 > back.json
grep -q "instead of" err && fail "the batch is not back: $(cat err)"
# The batch is a multiple of the microbatches, which are therefore kept: of 8 for 3 ranks 2 have 4 in four parts, and 5 in one.
parts=(--lr=1e-3 --batch_policy=linear --batch_ranks=3 --microbatches=4)
"$train" "${small[@]}" "${quiet[@]}" "${parts[@]}" --checkpoint_dir=parts --mesh=dp=2 --steps=2 > parts.json 2> err || fail "parts: $(tail -1 err)"
"$train" "${quiet[@]}" --checkpoint_dir=parts --mesh=dp=2 --steps=4 --batch_policy=linear > parts.json 2> err || fail "parts, resumed: $(tail -1 err)"
grep -q "^batch       4 instead of 8, for so many ranks" err || fail "the microbatches are not kept: $(cat err)"
# So does the rule of an f16 run's loss scale, and the parts of a batch that follows nothing. A plan without f16 asks for no scale.
scales() { sed -n 's/.*"tokens_per_s".*"loss_scale":\([0-9.]*\),.*/\1/p' "$1"; }
half=("${small[@]}" "${quiet[@]}" --dtype=f16 --loss_scale=1024 --loss_scale_window=3 --loss_scale_hysteresis=2 --min_loss_scale=2 --microbatches=4 --mesh=dp=2)
"$train" "${half[@]}" --steps=12 > whole.json 2> err || fail "f16: $(tail -1 err)"
"$train" "${half[@]}" --steps=6 --checkpoint_dir=half > half.json 2> err || fail "f16, saved: $(tail -1 err)"
"$train" "${quiet[@]}" --steps=12 --checkpoint_dir=half --mesh=dp=2 > more.json 2> err || fail "f16, resumed: $(tail -1 err)"
[[ $(scales whole.json | sort -u | wc -l) -ge 5 ]] || fail "the scale does not grow: $(scales whole.json)"
diff <(scales whole.json) <(cat <(scales half.json) <(scales more.json)) || fail "the rule of the loss scale is not kept"
diff <(losses whole.json | tail -6) <(losses more.json) || fail "f16 resumed differs"
mlp() { echo "{\"entries\": [{\"path\": \"blocks.*.mlp\", \"style\": \"Precision\", \"param\": \"$1\", \"output\": \"f64\"}, {\"path\": \"\", \"style\": \"DataParallel\", \"axis\": \"dp\"}]}"; }
mlp f16 > f16.json
mlp f64 > f64.json
"$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2 --steps=2 --plan=f16.json --loss_scale=64 --save=plan.safetensors > half.json 2> err || fail "f16 by a plan: $(tail -1 err)"
for plan in f16 f64; do
  "$train" "${quiet[@]}" --mesh=dp=2 --steps=4 --plan=$plan.json --resume=plan.safetensors > more.json 2> err || fail "a plan of $plan, resumed: $(tail -1 err)"
done
# A plan may add f16 or drop it, in a file and in a folder: a scale that was not saved begins anew, one that is not wanted stays behind.
"$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2 --steps=2 --plan=f64.json --save=f64.safetensors > half.json 2> err || fail "f64 by a plan: $(tail -1 err)"
"$train" "${quiet[@]}" --mesh=dp=2 --steps=4 --plan=f16.json --loss_scale=64 --resume=f64.safetensors > more.json 2> err || fail "f64 to f16: $(tail -1 err)"
[[ $(scales more.json) == $'64.0\n64.0' ]] || fail "f64 to f16: the scale is $(scales more.json)"
while read -r from to expected flags; do
  "$train" "${small[@]}" "${quiet[@]}" --mesh=dp=2 --steps=2 --plan="$from.json" --checkpoint_dir="from_$from" > half.json 2> err || fail "a folder of $from: $(tail -1 err)"
  # shellcheck disable=SC2086  # flags
  "$train" "${quiet[@]}" --mesh=dp=2 --steps=4 --plan="$to.json" $flags --checkpoint_dir="from_$from" > more.json 2> err || fail "a folder of $from, by $to: $(tail -1 err)"
  [[ $(losses more.json | wc -l) == 2 && $(scales more.json | wc -l) == "$expected" ]] || fail "a folder of $from, by $to: $(cat more.json)"
done << 'PLANS'
f16 f64 0
f64 f16 2 --loss_scale=64
PLANS
# So may the hysteresis, up and down; where nothing overflows it changes no bit.
: > joined
"$train" "${half[@]}" --steps=2 --checkpoint_dir=patience > more.json 2> err || fail "a hysteresis of 2: $(tail -1 err)"
losses more.json >> joined
for hysteresis in 1 2; do
  "$train" "${quiet[@]}" --mesh=dp=2 --steps=$((2 + 2 * hysteresis)) --checkpoint_dir=patience --loss_scale_hysteresis=$hysteresis > more.json 2> err ||
    fail "a hysteresis of $hysteresis, resumed: $(tail -1 err)"
  losses more.json >> joined
done
diff <(losses whole.json | head -6) joined || fail "another hysteresis changes losses"
bad_follow="--batch_ranks=4: expected 0, or --batch_policy=linear or sqrt"
"$train" --checkpoint_dir=follows "${quiet[@]}" --steps=12 > none.json 2> err && fail "no rule: no error"
grep -qF -- "$bad_follow" err || fail "no rule: $(tail -1 err)"
"$train" "${small[@]}" "${quiet[@]}" --steps=2 --checkpoint_dir=text.txt/runs > none.json 2> err && fail "a folder in a file"
grep -q "text.txt" err || fail "a folder in a file: $(tail -1 err)"
"$train" "${small[@]}" "${quiet[@]}" --steps=2 --checkpoint_dir=text.txt > none.json 2> err && fail "a file for a folder"
[[ $(cat err) == "error: --checkpoint_dir=text.txt: expected a folder, got a file" ]] || fail "a file for a folder: $(cat err)"

if [[ $failures -gt 0 ]]; then
  echo "$failures failed" >&2
  exit 1
fi
rm -rf "$dir"
