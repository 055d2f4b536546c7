#!/bin/bash
# chaos: a disk that is full, and bits that flip on it, cost steps and no state; where the kernel refuses a disk, the other faults are
# done, and those of the disk counted as skipped.
# Arguments: chaos, weft_run, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1
export TMPDIR=$dir  # where chaos makes its folder

# --- A kernel that makes no mounts.
if unshare --user --map-root-user true; then
  unshare --user --map-root-user bash -c 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"' refused "$chaos" "${job[@]}" \
    --kills=6 --kinds=disk,rank --ranks=3 > refused.json 2> refused.err || fail "no disk: $(tail -3 refused.err)"
  expect refused '"kills":3' '"recovered":3' '"equal":true' '"left_behind":0' '"skipped":3'
  grep -q "skipped: disk, 3 times: .*the kernel refuses namespaces" refused.err || fail "no disk: not said: $(cat refused.err)"
fi

for kinds in flip disk,flip,rank; do
  for restarts in 3 0; do
    skipped=0
    name=$kinds-$restarts
    # Without --folder: chaos makes its own.
    "$chaos" "${job[@]}" --kills=6 --kinds=$kinds --max_restarts=$restarts --ranks=3 > "$name.json" 2> "$name.err" ||
      fail "$kinds, $restarts restarts: $(tail -3 "$name.err")"
    # Of the three kinds, that of the disk, where this kernel refuses one.
    if [[ $kinds == disk,* ]] && grep -F "the kernel refuses" "$name.err"; then skipped=2; fi
    expect "$name" "\"kills\":$((6 - skipped))" "\"recovered\":$((6 - skipped))" "\"skipped\":$skipped" '"equal":true' '"left_behind":0'
    for kind in ${kinds//,/ }; do
      [[ $kind == disk && $skipped == 2 ]] || grep -q "of [46]: $kind" "$name.err" || fail "no fault of kind $kind: $(cat "$name.err")"
    done
  done
done
for folder in chaos-*; do
  [[ ! -e $folder ]] || fail "left behind: $(find "$folder" | head -3)"
done
exit $((failures > 0))
