#!/usr/bin/env bash
# The program's flags: what it cannot draw is one clear line. What it draws: seeing_test.sh.
set -euo pipefail
tool=$1

fail() { echo "FAIL: $*" >&2; exit 1; }

expect_error() {
  local expected=$1 output status=0
  shift
  output=$("$tool" "$@" 2>&1 >/dev/null) || status=$?
  [[ $status == 1 && $output == "error: $expected" ]] || fail "$* gave status $status and: $output"
}

[[ $("$tool" --shape=' 5 , 4 ') == "$("$tool" --shape=5,4)" ]] || fail "blanks around extents change something"
[[ $("$tool" --shape= --layout='[]') == 'f32[] []'* ]] || fail "no scalar"
# An extent that is left out is not another tensor's shape.
for shape in '5,,4' '5,4,' ',5,4' ','; do
  expect_error "--shape=$shape: expected extents by comma, 0 to 2^62 each, got ''" "--shape=$shape"
done
expect_error "--shape=5,-1: expected extents by comma, 0 to 2^62 each, got '-1'" --shape=5,-1
expect_error "--shape=5x4: expected extents by comma, 0 to 2^62 each, got '5x4'" --shape=5x4
# Pieces are computed in 64 bits: a little more than the extent must fit.
drawn=$("$tool" --mesh=dp=3 --shape=4611686018427387904 --layout='[dp]')
[[ $drawn == *'3074457345618258604:4611686018427387904'* ]] || fail "the largest extent: $drawn"
expect_error "--shape=9223372036854775807: expected extents by comma, 0 to 2^62 each, got '9223372036854775807'" \
  --mesh=dp=3 --shape=9223372036854775807 --layout='[dp]'
echo PASS
