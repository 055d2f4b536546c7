#!/bin/bash
# chaos: a disk that is full, and bits that flip on it, cost steps and no state. Skipped where the kernel refuses namespaces.
# Arguments: chaos, weft_run, forgetful_trainer.
set -u
chaos=$PWD/$1
weft_run=$PWD/$2
trainer=$PWD/$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/chaos.XXXXXX")
cd "$dir" || exit 1
export TMPDIR=$dir  # where chaos makes its folder
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

for kinds in flip disk,flip,rank; do
  for restarts in 3 0; do
    "$chaos" --kills=6 --kinds=$kinds --max_restarts=$restarts --weft_run="$weft_run" --train_gpt="$trainer" --ranks=3 \
      --train_flags="" --log_format=json > out.json 2> out.err || {
      if grep -F "the kernel refuses" out.err; then
        [[ $failures == 0 ]] || exit 1
        echo "skipped: $(grep -F "the kernel refuses" out.err)"
        exit 0
      fi
      fail "$kinds, $restarts restarts: $(tail -3 out.err)"
    }
    for field in '"kills":6' '"recovered":6' '"equal":true' '"left_behind":0'; do
      grep -qF "$field" out.json || fail "$kinds, $restarts restarts: expected $field: $(cat out.json)"
    done
    for kind in ${kinds//,/ }; do
      grep -q "of 6: $kind" out.err || fail "no fault of kind $kind: $(cat out.err)"
    done
  done
done
for folder in chaos-*; do
  [[ ! -e $folder ]] || fail "left behind: $(find "$folder" | head -3)"
done
exit $((failures > 0))
