#!/bin/bash
# chaos: writes of checkpoints that write half of what they are given cost nothing, ranks killed between two parts of one included; a
# writer that does not go on is found out.
# Arguments: chaos, weft_run, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1

for kinds in short short,rank short,clock,rank; do
  name=${kinds//,/_}
  try "$name" --kills=8 --kinds=$kinds --ranks=3 || {
    [[ $kinds == *clock* ]] && grep "install the package libfaketime" "$name.err" && continue
    fail "$kinds: $(tail -3 "$name.err")"
  }
  expect "$name" '"equal":true' '"left_behind":0'
  grep -q "skipped: clock" "$name.err" || expect "$name" '"kills":8' '"recovered":8'
  grep -q "of [5-8]: short" "$name.err" || fail "$kinds: no write was cut: $(cat "$name.err")"
done
# Nobody ends for it: a life that was not killed has not begun again.
grep "restart" short/hurt.log && fail "a job whose writes were cut has started again"

try torn --kills=2 --kinds=short --train_flags=--forget=rest --patience=10 && fail "a writer that forgets the rest: not found out"
grep -q "the job did not make a step" torn.err && grep -q " bytes; its rank wrote " torn/hurt.log || fail "torn: $(cat torn.err torn/hurt.log)"

# Without the library others are done; alone it is an error.
hurt some --kills=4 --kinds=short,rank --cut_writes=/nonexistent
expect some '"kills":2' '"recovered":2' '"equal":true' '"skipped":2'
grep -qF "skipped: short, 2 times: writes are cut short by cut_writes, and there is no '/nonexistent'" some.err || fail "not said: $(cat some.err)"
try bad --kinds=short --cut_writes=/nonexistent && fail "no library: expected an error"
grep -qF "or say where it is (--cut_writes)" bad.err || fail "no library: $(cat bad.err)"
exit $((failures > 0))
