#!/bin/bash
# chaos: a disk that is full, and bits that flip on it, cost steps and no state; where the kernel refuses a disk, the other faults are
# done, and those of the disk counted as skipped.
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

# --- A kernel that makes no mounts.
if unshare --user --map-root-user true; then
  unshare --user --map-root-user bash -c 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"' refused "$chaos" --kills=6 \
    --kinds=disk,rank --weft_run="$weft_run" --train_gpt="$trainer" --ranks=3 --train_flags="" --log_format=json > out.json 2> out.err ||
    fail "no disk: $(tail -3 out.err)"
  for field in '"kills":3' '"recovered":3' '"equal":true' '"left_behind":0' '"skipped":3'; do
    grep -qF "$field" out.json || fail "no disk: expected $field: $(cat out.json)"
  done
  grep -q "skipped: disk, 3 times: .*the kernel refuses namespaces" out.err || fail "no disk: not said: $(cat out.err)"
fi

for kinds in flip disk,flip,rank; do
  for restarts in 3 0; do
    skipped=0
    "$chaos" --kills=6 --kinds=$kinds --max_restarts=$restarts --weft_run="$weft_run" --train_gpt="$trainer" --ranks=3 \
      --train_flags="" --log_format=json > out.json 2> out.err || fail "$kinds, $restarts restarts: $(tail -3 out.err)"
    # Of the three kinds, that of the disk, where this kernel refuses one.
    if [[ $kinds == disk,* ]] && grep -F "the kernel refuses" out.err; then skipped=2; fi
    for field in "\"kills\":$((6 - skipped))" "\"recovered\":$((6 - skipped))" "\"skipped\":$skipped" '"equal":true' '"left_behind":0'; do
      grep -qF "$field" out.json || fail "$kinds, $restarts restarts: expected $field: $(cat out.json)"
    done
    for kind in ${kinds//,/ }; do
      [[ $kind == disk && $skipped == 2 ]] || grep -q "of [46]: $kind" out.err || fail "no fault of kind $kind: $(cat out.err)"
    done
  done
done
for folder in chaos-*; do
  [[ ! -e $folder ]] || fail "left behind: $(find "$folder" | head -3)"
done
exit $((failures > 0))
