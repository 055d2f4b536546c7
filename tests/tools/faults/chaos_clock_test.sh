#!/bin/bash
# chaos: wall clocks of single ranks that jump by days end no rank and change no bit; killed between jumps, the job goes on.
# Arguments: chaos, weft_run, forgetful_trainer.
set -u
chaos=$PWD/$1
weft_run=$PWD/$2
trainer=$PWD/$3
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/chaos.XXXXXX")
cd "$dir" || exit 1
failures=0
names() { find /dev/shm -maxdepth 1 -name '*faketime*' | sort; }
names > names_before

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

for kinds in clock clock,rank; do
  mkdir "$kinds"
  "$chaos" --kills=8 --kinds=$kinds --weft_run="$weft_run" --train_gpt="$trainer" --ranks=3 --train_flags="" --folder="$kinds" \
    --log_format=json > out.json 2> out.err || fail "$kinds: $(tail -3 out.err)"
  for field in '"kills":8' '"recovered":8' '"equal":true' '"left_behind":0'; do
    grep -qF "$field" out.json || fail "$kinds: expected $field: $(cat out.json)"
  done
  grep -q "of 8: clock" out.err || fail "$kinds: no clock has jumped: $(cat out.err)"
  # The clocks are not right: a rank has looked at its own.
  grep -q "^[+-][1-9]" "$kinds"/clock.? || fail "$kinds: no clock was set"
done
names | comm -13 names_before - > names_left
[[ -s names_left ]] && fail "left in shared memory: $(cat names_left)"
# A life that nobody ended has not begun again.
grep -q "restart" clock/hurt.log && fail "a job whose clocks jumped has started again: $(cat clock/hurt.log)"

# Without the library others are done; alone it is an error.
"$chaos" --kills=4 --kinds=clock,rank --libfaketime=/nonexistent --weft_run="$weft_run" --train_gpt="$trainer" --train_flags="" \
  --log_format=json > some.json 2> some.err || fail "no library: $(tail -3 some.err)"
for field in '"kills":2' '"recovered":2' '"equal":true' '"skipped":2'; do grep -qF "$field" some.json || fail "expected $field: $(cat some.json)"; done
grep -qF "skipped: clock, 2 times: clocks jump by libfaketime, and there is no '/nonexistent'" some.err || fail "not said: $(cat some.err)"
"$chaos" --kinds=clock --libfaketime=/nonexistent --weft_run="$weft_run" --train_gpt="$trainer" > bad.out 2> bad.err &&
  fail "no library: expected an error"
grep -qF "there is no '/nonexistent': install the package libfaketime" bad.err || fail "no library: $(cat bad.err)"
exit $((failures > 0))
