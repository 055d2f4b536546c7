#!/bin/bash
# flight_report under `bazel run`: a relative folder is taken from where the user stands. Argument: flight_report.
set -u
flight_report=$PWD/$1
cd "$TEST_TMPDIR" || exit 1
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

mkdir -p user/flight runfiles
cat > user/flight/flight_rank_0.json << 'END'
{"rank": 0, "world_size": 1, "run_id": "none", "generation": 0, "time_ms": 1, "activity": "data loader", "groups": [], "entries": []}
END
cd runfiles || exit 1
report=$(BUILD_WORKING_DIRECTORY=$TEST_TMPDIR/user "$flight_report" --dir=flight 2>&1) || fail "$report"
[[ $report == "rank 0: data loader"* ]] || fail "$report"
# Without Bazel from where the program stands.
report=$("$flight_report" --dir=../user/flight 2>&1) || fail "$report"
"$flight_report" --dir=flight > out 2>&1 && fail "a folder that is not there"
grep -q -- "--dir=flight: No such file or directory" out || fail "$(cat out)"

# Of many records the one that cannot be read is named: a machine that lost its power leaves empty ones.
: > ../user/flight/flight_rank_1.json
"$flight_report" --dir=../user/flight > out 2>&1 && fail "an empty record"
grep -q "^error: ../user/flight/flight_rank_1.json: not a flight record: " out || fail "$(cat out)"
