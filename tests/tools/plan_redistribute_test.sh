#!/usr/bin/env bash
# The program as a user calls it: both outputs, help, and one clear line for what it cannot do.
set -euo pipefail
tool=$1

fail() { echo "FAIL: $*" >&2; exit 1; }

json=$("$tool" --mesh=a=4,b=4 --shape=4096,4096 --dtype=f32 --from="[a,b]" --to="[b,a]" --objective=bytes \
  --log_format=json)
[[ $(wc -l <<<"$json") == 1 ]] || fail "not one line: $json"
for field in steps worst_rank_bytes total_bytes fraction peak_bytes predicted_us greedy_bytes bound_bytes; do
  [[ $json == *"\"$field\":"* ]] || fail "no field $field in $json"
done
[[ $json == *'"fraction":0.0625,'* ]] || fail "a permutation moves a sixteenth: $json"

text=$("$tool" --mesh=a=4,b=4 --shape=4096,4096 --from="[ a , b ]" --to="[b,a]")
[[ $text == *permute*"a,b"* ]] || fail "no step in: $text"
"$tool" --help | grep -q -- --memory_cap || fail "--help does not list the flags"

expect_error() {
  local expected=$1 output status=0
  shift
  output=$("$tool" "$@" 2>&1 >/dev/null) || status=$?
  [[ $status == 1 && $(wc -l <<<"$output") == 1 && $output == "error: "*"$expected"* ]] ||
    fail "$* gave status $status and: $output"
}
expect_error "--from: expected a layout, such as [a, b], got none"
expect_error "--to: expected a layout, such as [a, b], got none" --from="[a,b]"
expect_error "expected an axis of mesh" --from="[a,c]" --to="[a,b]"
expect_error "has 1 dims" --from="[a]" --to="[a,b]"
expect_error "expected time or bytes" --from="[a,b]" --to="[b,a]" --objective=speed
expect_error "cannot read shape" --shape=4x4 --from="[a,b]" --to="[b,a]"
expect_error "with 10 bytes a rank" --from="[a,b]" --to="[b,a]" --memory_cap=10
echo PASS
