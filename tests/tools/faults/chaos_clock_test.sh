#!/bin/bash
# chaos: wall clocks of single ranks that jump by days end no rank and change no bit; killed between jumps, the job goes on.
# Arguments: chaos, weft_run, forgetful_trainer.
. tests/tools/faults/chaos.sh "$@" || exit 1
names() { find /dev/shm -maxdepth 1 -name '*faketime*' | sort; }
names > names_before

for kinds in clock clock,rank; do
  name=${kinds/,/_}
  hurt "$name" --kills=8 --kinds=$kinds --ranks=3
  expect "$name" '"kills":8' '"recovered":8' '"equal":true' '"left_behind":0'
  grep -q "of 8: clock" "$name.err" || fail "$kinds: no clock has jumped: $(cat "$name.err")"
  # The clocks are not right: a rank has looked at its own.
  grep -q "^[+-][1-9]" "$name"/clock.? || fail "$kinds: no clock was set"
done
names | comm -13 names_before - > names_left
[[ -s names_left ]] && fail "left in shared memory: $(cat names_left)"
# A life that nobody ended has not begun again.
grep -q "restart" clock/hurt.log && fail "a job whose clocks jumped has started again: $(cat clock/hurt.log)"

# Without the library others are done; alone it is an error.
hurt some --kills=4 --kinds=clock,rank --libfaketime=/nonexistent
expect some '"kills":2' '"recovered":2' '"equal":true' '"skipped":2'
grep -qF "skipped: clock, 2 times: clocks jump by libfaketime, and there is no '/nonexistent'" some.err || fail "not said: $(cat some.err)"
try bad --kinds=clock --libfaketime=/nonexistent && fail "no library: expected an error"
grep -qF "there is no '/nonexistent': install the package libfaketime" bad.err || fail "no library: $(cat bad.err)"
exit $((failures > 0))
