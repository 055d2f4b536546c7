#!/bin/bash
# train_perception end to end: the same losses whichever ranks its parts lie on, to the bit on threads and on processes; it
# learns what neither branch could alone; bad input. Arguments: train_perception, weft_run.
set -u
train=$PWD/$1
weft_run=$PWD/$2
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/train_perception.XXXXXX")
cd "$dir" || exit 1
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\)}$/\1 \2 \3/p' "$1"; }
# Equal but for rounding, which grows with the steps.
same_losses() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk '
    function far(a, b) { return (a - b) ^ 2 > (2e-3 * (1 + b)) ^ 2 }
    $1 != $4 || far($2, $5) || far($3, $6) { print; bad = 1 } END { exit bad || NR == 0 }'
}

small=(--batch=7 --steps=6 --log_format=json)
"$train" "${small[@]}" --one_device >one.json 2>one.err || fail "one device: $(tail -1 one.err)"
[[ $(losses one.json | wc -l) == 6 ]] || fail "expected 6 steps: $(cat one.json)"
for spread in "" "--camera= --lidar= --fusion=" "--camera=tp=2 --lidar=dp=3 --fusion=fs=2" "--camera=dp=2,tp=2 --lidar=fs=2,tp=2 --fusion="; do
  # shellcheck disable=SC2086
  "$train" "${small[@]}" $spread >parts.json 2>parts.err || fail "$spread: $(tail -1 parts.err)"
  same_losses parts.json one.json || fail "$spread: not the losses of one device"
done

# --- Processes over TCP: unlike numbers of ranks, the bits of threads.
spread=(--camera=dp=2 --lidar= --fusion=tp=2)
"$train" "${small[@]}" "${spread[@]}" >threads.json 2>threads.err || fail "threads: $(tail -1 threads.err)"
"$weft_run" --nproc-per-node=5 "$train" "${small[@]}" "${spread[@]}" >processes.json 2>processes.err ||
  fail "weft_run: $(tail -5 processes.err)"
diff <(losses threads.json) <(losses processes.json) >/dev/null || fail "threads and processes differ"

# --- A color is not seen by the laser, a shape not by the camera: a third of nine classes could be guessed with one of them.
"$train" --log_format=json --camera=dp=2 --lidar= --fusion= >learnt.json 2>learnt.err || fail "learning: $(tail -1 learnt.err)"
sed -n 's/^{"test_accuracy":\([0-9.]*\),"test_distance":\([0-9.]*\)}$/\1 \2/p' learnt.json | awk '
  { seen = 1; if (!($1 > 0.8 && $2 < 0.25)) bad = 1 } END { exit !seen || bad }' || fail "it has learnt: $(tail -1 learnt.json)"

# --- A loss that is not finite is null, and so is how far off such a model is.
"$train" "${small[@]}" --one_device --lr=9e8 >nan.json 2>nan.err || fail "not finite: $(tail -1 nan.err)"
grep -q '"loss":null,' nan.json || fail "expected a loss that is not finite: $(cat nan.json)"
for lines in nan.json learnt.json; do
  python3 -m json.tool --json-lines $lines >/dev/null || fail "$lines is no JSON: $(cat $lines)"
done

expect_error() {
  local message=$1 actual
  shift
  actual=$("$train" "${small[@]}" "$@" 2>&1 >/dev/null) && fail "$*: expected an error"
  [[ $actual == "error: $message" ]] || fail "$*: expected '$message', got '$actual'"
}
expect_error "mesh 'pp=2' of camera: expected axes dp, fs and tp, got 'pp'" --camera=pp=2
expect_error "--camera=foo: expected no --one_device beside it" --one_device --camera=foo
expect_error "--fusion=: expected no --one_device beside it" --fusion= --one_device
expect_error "--batch=1: expected 2 or more" --batch=1
expect_error "--steps=0: expected 1 or more" --steps=0
expect_error "--lr=-1: expected at least 0 and below 1e+09" --lr=-1
expect_error "--log_every=0: expected 1 or more" --log_every=0
expect_error "--log_format=xml: expected one of text, json" --log_format=xml
exit $((failures > 0))
