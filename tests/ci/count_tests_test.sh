#!/bin/bash
# .ci/count_tests.awk on planted output and logs, and the line by which tests/in_namespace.sh skips. Argument: the script.
set -u
count=$1
logs=$TEST_TMPDIR/testlogs
failures=0

# plant NAME LINES...: the log of a test.
plant() {
  mkdir -p "$logs/$1"
  printf '%s\n' 'exec ${PAGER:-/usr/bin/less} "$0" || exit 1' "Executing tests from $1" "${@:2}" > "$logs/$1/test.log"
}

# expect WHAT EXPECTED OUTPUT...: what is printed for the lines of OUTPUT.
expect() {
  local actual
  actual=$(printf '%s\n' "${@:3}" | awk -v "logs=$logs" -f "$count" 2>&1)
  [[ $actual == "$2" ]] && return
  printf 'FAILED: %s\nexpected:\n%s\ngot:\n%s\n' "$1" "$2" "$actual" >&2
  failures=$((failures + 1))
}

plant mesh/a_test '[  PASSED  ] 3 tests.'
plant mesh/b_test 'well'
plant examples/hosts_test 'some text' 'skipped: the kernel refuses' ''
plant examples/talks_test 'skipped: this is not the last line' 'well'
plant ops/gemm_test '[  SKIPPED ] Gemm.BF16 (0 ms)' '[  PASSED  ] 5 tests.' '[  SKIPPED ] 2 tests, listed below:' \
  '[  SKIPPED ] Gemm.BF16' '[  SKIPPED ] Gemm.F16'
plant ops/one_test '[  PASSED  ] 0 tests.' '[  SKIPPED ] 1 test, listed below:' '[  SKIPPED ] One.One'
plant nodes_test/shard_1_of_2 'well'
plant nodes_test/shard_2_of_2 'skipped: half of it'

expect 'no tests' '0 0 0' 'INFO: Build completed'
expect 'passed' '2 0 0' '//mesh:a_test      PASSED in 0.1s' '//mesh:b_test    (cached) PASSED in 2.0s'
expect 'failed' '1 5 0' '//mesh:a_test    FLAKY, failed in 1 out of 2 in 0.5s' '//mesh:b_test  FAILED in 0.1s' \
  '//mesh:c_test   FAILED TO BUILD' '//mesh:d_test    TIMEOUT in 60.0s' '//mesh:e_test   NO STATUS' \
  '//mesh:f_test   FAILED in 2 out of 2 in 48.9s' '  /x/testlogs/mesh/f_test/test.log'
expect 'skipped' $'1 0 1\n//examples:hosts_test: the kernel refuses' \
  '//examples:hosts_test     PASSED in 0.1s' '//examples:talks_test     PASSED in 0.1s'
expect 'cases of GoogleTest' $'2 0 3\n//ops:gemm_test: Gemm.BF16\n//ops:gemm_test: Gemm.F16\n//ops:one_test: One.One' \
  '//ops:gemm_test   PASSED in 0.1s' '//ops:one_test   (cached) PASSED in 0.1s'
expect 'a shard that is skipped' $'0 0 1\n//:nodes_test: half of it' '//:nodes_test      PASSED in 0.1s'
expect 'a failed test that also skips' '0 1 0' '//examples:hosts_test     FAILED in 0.1s'
expect 'a test without a log' "//mesh:gone_test: passed, but has no log in $logs/mesh/gone_test"$'\n0 1 0' '//mesh:gone_test  PASSED in 0.1s'

# A kernel that refuses namespaces, and an unshare that fails for another reason.
namespaces=$PWD/tests/in_namespace.sh
fake() {
  mkdir -p "$TEST_TMPDIR/bin"
  printf '#!/bin/sh\necho "unshare: %s" >&2\nexit 1\n' "$1" > "$TEST_TMPDIR/bin/unshare"
  chmod +x "$TEST_TMPDIR/bin/unshare"
  # shellcheck source=tests/in_namespace.sh
  (PATH=$TEST_TMPDIR/bin:$PATH && . "$namespaces" && enter_namespaces --net -- word; echo not reached) 2>&1
}
refused=$(fake 'unshare failed: Operation not permitted') || failures=$((failures + 1))
[[ $refused == 'skipped: the kernel refuses namespaces: unshare: unshare failed: Operation not permitted' ]] ||
  { echo "FAILED: a refusal: $refused" >&2; failures=$((failures + 1)); }
broken=$(fake "unrecognized option '--net'") && failures=$((failures + 1))
[[ $broken == "FAILED: unshare: unshare: unrecognized option '--net'" ]] ||
  { echo "FAILED: another failure: $broken" >&2; failures=$((failures + 1)); }

exit $((failures > 0))
