#!/usr/bin/env bash
# //tools:check_rules as a program: what it prints where, and how it fails. $1 is the program.
set -euo pipefail
tool=$1

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# Text: the summary is the last line and an object; progress is on stderr alone.
"$tool" --op=square >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err"
last=$(tail -n 1 "$TEST_TMPDIR/out")
[[ $last =~ ^\{\"ops\":1,\"cases\":[1-9][0-9]*,\"wrong\":0,\"missing\":[0-9]+,\"refused\":0\}$ ]] || fail "summary: $last"
grep -q '^\[1/1\] square: [0-9]* cases, 0 wrong' "$TEST_TMPDIR/err" || fail "no progress on stderr"
grep -q '^missing: square, rule .*(deliberate: only sums' "$TEST_TMPDIR/out" ||
  fail "missing strategies are not listed with their reason"
listed=$(grep -c '^missing: square' "$TEST_TMPDIR/out" || true)
[[ $last == *"\"missing\":$listed,"* ]] || fail "$listed missing listed, but $last"

# JSON: nothing but objects, and the same counts.
"$tool" --op=square --log_format=json >"$TEST_TMPDIR/json" 2>/dev/null
grep -vq '^{.*}$' "$TEST_TMPDIR/json" && fail "stdout holds more than objects"
[[ $(tail -n 1 "$TEST_TMPDIR/json") == "$last" ]] || fail "json and text count differently"

# Shards: each op in one of them.
for shard in 1/300 2/300; do "$tool" --shard=$shard 2>&1 >/dev/null | grep -o '^\[1/1\] [a-z_0-9]*'; done >"$TEST_TMPDIR/ops"
[[ $(sort -u "$TEST_TMPDIR/ops" | wc -l) == 2 ]] || fail "shards: $(cat "$TEST_TMPDIR/ops")"

# Misuse: one line on stderr, exit code 1.
for arguments in --op=no_such_op --shard=3 --shard=0/2 --shard=3/2 --shard=1/2/3 --log_format=xml --no_such_flag; do
  if "$tool" $arguments >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err"; then fail "$arguments passed"; fi
  [[ $(wc -l <"$TEST_TMPDIR/err") == 1 && ! -s $TEST_TMPDIR/out ]] || fail "$arguments: not one line on stderr"
done
grep -q '^error: ' "$TEST_TMPDIR/err" || fail "no error line"
("$tool" --op=no_such_op 2>&1 || true) | grep -q "there is no op 'no_such_op'; ops are .*softmax" || fail "ops are not named"
"$tool" --help | grep -q -- --exhaustive || fail "--help does not list --exhaustive"
