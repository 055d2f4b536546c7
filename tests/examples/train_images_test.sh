#!/bin/bash
# train_resnet and train_vit end to end on images made here: JSON lines, the same losses over meshes and plans, accuracy, bad
# input. Arguments: the two programs.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/small_images.sh"
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_images.XXXXXX")
programs=("$PWD/$1" "$PWD/$2")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

images train 90
images t10k 42
[[ $(wc -c <train-images-idx3-ubyte) == $((16 + 90 * 64)) ]] || fail "the images are not what they should be"

# The same, but for one pixel, or for one label of the test images.
mkdir others relabelled elsewhere
cp -- *-ubyte others
cp -- *-ubyte relabelled
printf '\xff' | dd of=others/train-images-idx3-ubyte bs=1 seek=99 conv=notrunc status=none
printf '\x03' | dd of=relabelled/t10k-labels-idx1-ubyte bs=1 seek=8 conv=notrunc status=none

# A path that no checkpoint can keep.
latin=$'caf\xe9'
mkdir "$latin"
cp -- *-ubyte "$latin"

losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1"; }
accuracy() { sed -n 's/^{"step":[0-9]*,"test_accuracy":\([0-9.]*\)}$/\1/p' "$1" | tail -1; }
# Equal but for rounding: the last digits of f32.
same_losses() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk '
    function far(a, b) { return (a - b) ^ 2 > (2e-3 * (1 + b)) ^ 2 }
    $1 != $4 || far($2, $5) || far($3, $6) { print; bad = 1 } END { exit bad || NR == 0 }'
}

# Test images whose evaluation lasts for seconds.
mkdir long
cp -- train-* long
images_of() { tail -c +17 t10k-images-idx3-ubyte; }
labels_of() { tail -c +9 t10k-labels-idx1-ubyte; }
{ printf '\x00\x00\x08\x03'; big_endian 42000; big_endian 8; big_endian 8; for _ in {1..1000}; do images_of; done; } >long/t10k-images-idx3-ubyte
{ printf '\x00\x00\x08\x01'; big_endian 42000; for _ in {1..1000}; do labels_of; done; } >long/t10k-labels-idx1-ubyte

small=(--data=. --batch=7 --log_format=json --eval_every=0)
# The last step is saved before it is evaluated, which may last longer than whoever sent a signal waits. Of the
# program in the background: `evaluations` is how many it had told when the step was saved.
long=(--data=long --batch=7 --log_format=json --mesh= --checkpoint_dir=hasty --save_every=0)
evaluations_before_the_save() {
  until compgen -G 'hasty/step-?????????' >/dev/null; do sleep 0.02; kill -0 $pid 2>/dev/null || break; done
  evaluations=$(grep -c test_accuracy hasty.json)
  [[ $(basename hasty/step-?????????) == "$(printf 'step-%09d' "$(losses hasty.json | wc -l)")" ]] || fail "saved: $(ls hasty): $(cat hasty.json hasty.err)"
  kill -KILL $pid
  wait $pid
}
"${programs[1]}" "${long[@]}" --steps=3 --eval_every=0 >hasty.json 2>hasty.err &
pid=$!
evaluations_before_the_save
[[ $evaluations == 0 ]] || fail "the end is evaluated before it is saved: $(cat hasty.json)"
# Begun again, it has its last step's accuracy.
"${programs[1]}" "${long[@]}" >hasty.json 2>hasty.err || fail "after the end: $(tail -1 hasty.err)"
[[ $(cat hasty.json) == '{"step":3,"test_accuracy":'*'}' ]] || fail "after the end: $(cat hasty.json)"
rm -r hasty hasty.json
"${programs[1]}" "${long[@]}" --steps=100000 --eval_every=1 >hasty.json 2>hasty.err &
pid=$!
until [[ -s hasty.json ]]; do sleep 0.02; kill -0 $pid 2>/dev/null || break; done
kill -TERM $pid
evaluations_before_the_save
((evaluations < $(losses hasty.json | wc -l))) || fail "after SIGTERM a step is evaluated before it is saved: $(cat hasty.json)"

for program in "${programs[@]}"; do
  name=$(basename "$program")
  "$program" --help >help.txt || fail "$name --help"
  ! grep -q -e --resume help.txt || fail "$name --help speaks of a flag that it lacks: $(grep -e --resume help.txt)"
  "$program" "${small[@]}" --mesh= --steps=8 >one.json 2>one.err || fail "$name: $(tail -1 one.err)"
  [[ $(losses one.json | wc -l) == 8 ]] || fail "$name: expected 8 steps: $(cat one.json)"
  for spread in "--mesh=dp=2" "--mesh=dp=3 --plan=fsdp" "--mesh=tp=2" "--mesh=dp=2,tp=2 --plan=fsdp --check_replicas=3"; do
    # shellcheck disable=SC2086
    "$program" "${small[@]}" $spread --steps=8 >many.json 2>many.err || fail "$name $spread: $(tail -1 many.err)"
    same_losses many.json one.json || fail "$name $spread: not the losses of one rank"
  done
  # A batch that follows the ranks has an image per microbatch at least, and the learning rate that goes with so many.
  "$program" "${small[@]}" --mesh= --microbatches=7 --steps=4 >parts.json 2>one.err || fail "$name: $(tail -1 one.err)"
  "$program" "${small[@]}" --mesh= --microbatches=7 --steps=4 --batch_ranks=4 --batch_policy=linear >many.json 2>many.err || fail "$name: $(tail -1 many.err)"
  diff <(losses parts.json) <(losses many.json) || fail "$name: a batch that stays as it is has another learning rate"
  # In stages: the losses of one rank that sees the same microbatches, and of a ViT those of the whole batch.
  "$program" "${small[@]}" --mesh= --microbatches=3 --steps=8 >parts.json 2>one.err || fail "$name: $(tail -1 one.err)"
  [[ $name == train_resnet ]] || same_losses parts.json one.json || fail "$name: microbatches make other losses"
  for spread in "--mesh=pp=2" "--mesh=pp=2,dp=2 --plan=fsdp --schedule=zbv" "--mesh=pp=2,tp=2 --schedule=zb_h1"; do
    # shellcheck disable=SC2086
    "$program" "${small[@]}" $spread --microbatches=3 --steps=8 >many.json 2>many.err || fail "$name $spread: $(tail -1 many.err)"
    same_losses many.json parts.json || fail "$name $spread: not the losses of one rank"
    [[ $(accuracy many.json) == "$(accuracy parts.json)" ]] || fail "$name $spread: accuracy $(accuracy many.json), not $(accuracy parts.json)"
  done
  # Saved in a folder, gone on with under another plan and number of ranks.
  rm -rf runs
  "$program" "${small[@]}" --mesh=dp=2 --steps=8 >straight.json 2>many.err || fail "$name: $(tail -1 many.err)"
  "$program" "${small[@]}" --mesh=dp=2 --steps=8 --checkpoint_dir=runs --save_every=5 >saved.json 2>many.err || fail "$name saved: $(tail -1 many.err)"
  diff <(losses straight.json) <(losses saved.json) || fail "$name: saving changes a loss"
  rm -rf runs/step-000000008
  "$program" "${small[@]}" --checkpoint_dir=runs --mesh=dp=2 >many.json 2>many.err || fail "$name resumed: $(tail -1 many.err)"
  diff <(losses straight.json | tail -3) <(losses many.json) || fail "$name: resumed differs"
  # Without --data on the same images, wherever it is started; on others it is refused, also if their shape is the same.
  rm -rf runs/step-000000008
  (cd elsewhere && "$program" --log_format=json --eval_every=0 --checkpoint_dir=../runs --mesh=dp=2) >many.json 2>many.err || fail "$name resumed without --data: $(tail -1 many.err)"
  diff <(losses straight.json | tail -3) <(losses many.json) || fail "$name: resumed without --data differs"
  rm -rf runs/step-000000008
  "$program" "${small[@]}" --checkpoint_dir=runs --mesh=dp=3 --plan=fsdp >many.json 2>many.err || fail "$name resumed: $(tail -1 many.err)"
  losses straight.json | tail -3 | sed 's/^\([0-9]*\) \(.*\) \(.*\)/{"step":\1,"loss":\2,"grad_norm":\3,/' >last.json
  same_losses many.json last.json || fail "$name: resumed on three ranks differs"
  rm -rf runs/step-000000008
  "$program" "${small[@]}" --checkpoint_dir=runs --mesh=pp=2 --save_every=6 >many.json 2>many.err || fail "$name resumed: $(tail -1 many.err)"
  same_losses many.json last.json || fail "$name: resumed in two stages differs"
  rm -rf runs/step-000000008
  "$program" "${small[@]}" --checkpoint_dir=runs --mesh= >many.json 2>many.err || fail "$name resumed: $(tail -1 many.err)"
  tail -2 last.json >stages.json
  same_losses many.json stages.json || fail "$name: what two stages saved at step 6 goes on otherwise"
  # The newest steps, of a life that had gone on, are broken: one of the first life has the same learning rate, which nobody has given.
  rm -rf lives
  "$program" "${small[@]}" --mesh= --steps=6 --checkpoint_dir=lives --save_every=2 >straight.json 2>many.err || fail "$name lives: $(tail -1 many.err)"
  rm -rf lives/step-00000000{4,6}
  "$program" "${small[@]}" --mesh= --checkpoint_dir=lives --save_every=2 >many.json 2>many.err || fail "$name, second life: $(tail -1 many.err)"
  truncate -s 100 lives/step-00000000{4,6}/rank-00000.safetensors
  "$program" "${small[@]}" --mesh= --checkpoint_dir=lives --save_every=2 >many.json 2>many.err || fail "$name, third life: $(tail -1 many.err)"
  diff <(losses straight.json | tail -4) <(losses many.json) || fail "$name: the third life differs"
  # One that is given may have been another.
  truncate -s 100 lives/step-000000006/rank-00000.safetensors
  "$program" "${small[@]}" --mesh= --steps=7 --checkpoint_dir=lives >many.json 2>many.err || fail "$name, more steps: $(tail -1 many.err)"
  truncate -s 100 lives/step-000000007/rank-00000.safetensors
  "$program" "${small[@]}" --mesh= --steps=7 --checkpoint_dir=lives >again.json 2>many.err || fail "$name, more steps again: $(tail -1 many.err)"
  diff <(losses many.json) <(losses again.json) || fail "$name: more steps again differ"
  # SIGTERM: a save of the last step that was told, and the code of the signal; the run goes on from there.
  rm -rf stopped
  : >stopped.json  # the other program's lines are not this one's
  "$program" "${small[@]}" --mesh=dp=2 --steps=100000 --checkpoint_dir=stopped --save_every=0 >stopped.json 2>stopped.err &
  pid=$!
  until [[ $(wc -l <stopped.json) -ge 3 ]]; do sleep 0.05; kill -0 $pid 2>/dev/null || break; done
  kill -TERM $pid
  wait $pid
  [[ $? == 143 ]] || fail "$name: expected exit code 143 after SIGTERM: $(tail -1 stopped.err)"
  steps=$(losses stopped.json | wc -l)
  [[ $(basename stopped/step-*) == "$(printf 'step-%09d' "$steps")" ]] || fail "$name: after SIGTERM: $(ls stopped)"
  "$program" "${small[@]}" --mesh=dp=2 --steps=$((steps + 1)) --checkpoint_dir=stopped >many.json 2>many.err || fail "$name after SIGTERM: $(tail -1 many.err)"
  [[ $(losses many.json | cut -d' ' -f1) == $((steps + 1)) ]] || fail "$name: goes on at $(head -1 many.json), not after step $steps"
  "$program" "${small[@]}" --mesh=dp=2 --batch=30 --steps=60 >learnt.json 2>learnt.err || fail "$name: $(tail -1 learnt.err)"
  awk -v a="$(accuracy learnt.json)" 'BEGIN { exit !(a > 0.9) }' ||
    fail "$name: accuracy $(accuracy learnt.json) of images that are told apart by their brightest rows"
  # A loss that is not finite: its line is the last.
  "$program" "${small[@]}" --mesh=dp=2 --steps=8 --lr=1e30 >nan.json 2>nan.err && fail "$name: a loss that is not finite is no error"
  [[ $(grep -c '"loss":null,' nan.json) == 1 && $(tail -1 nan.json) == *'"loss":null,'* ]] || fail "$name: expected a loss that is not finite: $(tail -1 nan.json)"
  for lines in nan.json learnt.json; do
    python3 -m json.tool --json-lines $lines >/dev/null || fail "$name: $lines is no JSON: $(cat $lines)"
  done
  # A path that is not UTF-8 is refused where it would be saved, and there alone.
  "$program" "${small[@]}" "--data=$latin" --mesh= --steps=1 >latin.json 2>latin.err || fail "$name: a path that is not UTF-8: $(tail -1 latin.err)"
  [[ $(losses latin.json | wc -l) == 1 ]] || fail "$name: a path that is not UTF-8: $(cat latin.json)"
  "$program" "${small[@]}" "--data=$latin" --mesh= --steps=1 --checkpoint_dir=latin >latin.json 2>latin.err && fail "$name: a path that is not UTF-8 is saved"
  grep -q '^error: --data=.*caf\\xe9: expected UTF-8, which checkpoints keep it in; rename it, or save nothing$' latin.err || fail "$name: a path that is not UTF-8: $(tail -1 latin.err)"
  "$program" --data=. --mesh=tp=2 --print_model >model.txt || fail "$name: --print_model"
  grep -q 'flops per forward$' model.txt || fail "$name: no flops: $(tail -1 model.txt)"

  expect_error() {
    local message=$1 actual
    shift
    actual=$("$program" "${small[@]}" "$@" 2>&1 >/dev/null) && fail "$name $*: expected an error"
    [[ $actual == "error: $message" ]] || fail "$name $*: expected '$message', got '$actual'"
  }
  expect_error "--seed=3: the checkpoint to resume from was made with '1337'; leave the flag out" --checkpoint_dir=runs --seed=3
  expect_error "--checkpoint_dir=runs: it was trained on other images than 'others'" --checkpoint_dir=runs --data=others
  expect_error "--checkpoint_dir=runs: it was trained on other images than 'relabelled'" --checkpoint_dir=runs --data=relabelled
  expect_error "--plan=zero1: expected ddp or fsdp" --plan=zero1
  expect_error "plan fsdp needs an axis 'dp'; the mesh is 'tp=2'" --mesh=tp=2 --plan=fsdp
  expect_error "plan fsdp needs an axis 'dp'; the mesh is ''" --mesh= --plan=fsdp
  expect_error "--mesh: expected axes pp, dp and tp, got 'cp'" --mesh=cp=2
  expect_error "--schedule: the mesh (dp=2) has no axis pp" --schedule=gpipe
  expect_error "--schedule=pipedream: it updates parameters within the step (OPT): expected one that leaves them to the optimizer after the step" --mesh=pp=2 --schedule=pipedream
  expect_error "--print_model: a rank of the mesh (pp=2) has a part of the model; leave pp out" --mesh=pp=2 --print_model
  expect_error "--microbatches=8: expected 1 to --batch=7" --microbatches=8
  expect_error "--steps=-1: expected at least 0" --steps=-1
  expect_error "--batch=1: expected at least 2 images" --batch=1
  expect_error "--lr=-1: expected a number of at least 0" --lr=-1
  for decay in -1 nan; do
    expect_error "--weight_decay=$decay: expected at least 0 and below 1e+09" --weight_decay=$decay
  done
  expect_error "--eval_every=-1: expected at least 0" --eval_every=-1
  expect_error "--check_replicas=-1: expected at least 0" --check_replicas=-1
  expect_error "--log_every=0: expected at least 1" --log_every=0
  expect_error "--log_format=xml: expected text or json" --log_format=xml
  expect_error "cannot read '/no/such/train-images-idx3-ubyte': No such file or directory" --data=/no/such
done
exit $((failures > 0))
