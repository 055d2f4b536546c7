#!/usr/bin/env bash
# The program as a user calls it: lists, certificate, JSON, picture, files, and one clear line for what it cannot do.
set -euo pipefail
tool=$1

fail() { echo "FAIL: $*" >&2; exit 1; }
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/schedule.XXXXXX")

json=$("$tool" --name=zbv --ranks=4 --microbatches=8 --times=2,3,2 --log_format=json)
expected='{"name":"zbv","ranks":4,"chunks":2,"microbatches":8,"ok":true,"makespan":60.5,"bubble":4.5,"peak_w":[8,8,8,8],"peak_i":[8,8,8,8],"error":""}'
[[ $json == "$expected" ]] || fail "expected $expected, got $json"

lists=$("$tool" --name=1f1b --ranks=2 --microbatches=2)
[[ $lists == $'rank 0: 0F0,0F1,0B0,0B1\nrank 1: 1F0,1B0,1F1,1B1' ]] || fail "lists: $lists"

text=$("$tool" --name=dualpipev --pairs=atomic --check)
[[ $text == $'rank 0: 0F0,'*$'\n\nok: 4 ranks, 2 chunks per rank, 8 microbatches\nmakespan 27, bubble 3 (11.1%) of F, I, W = 1, 1, 1\n'*'   3 '* ]] ||
  fail "certificate: $text"
# F and B of a pair take 3 one after the other.
[[ $("$tool" --name=dualpipev --pairs=3 --check) == "$text" ]] || fail "a pair of 3 is no atomic one"
[[ $("$tool" --name=dualpipev --pairs=2 --check) != "$text" ]] || fail "a pair of 2 is timed as one of 3"

# Rank 0 has what both F save before its first I. Rank 1 has what one F saves, and beside it what the I before has left for W.
lists=$("$tool" --name=zb_h1 --ranks=2 --microbatches=2)
[[ $lists == $'rank 0: 0F0,0F1,0I0,0W0,0I1,0W1\nrank 1: 1F0,1I0,1F1,1I1,1W0,1W1' ]] || fail "lists of zb_h1: $lists"
json=$("$tool" --name=zb_h1 --ranks=2 --microbatches=2 --bytes=100,70 --log_format=json)
[[ $json == *'"peak_w":[2,2],"peak_i":[2,1],"peak_bytes":[200,170],"error":""}' ]] || fail "bytes: $json"
text=$("$tool" --name=zb_h1 --ranks=2 --microbatches=2 --bytes=100,70 --check)
[[ $text == *$'  versions    peak_bytes\n'*$'         1           200\n'*$'         1           170' ]] || fail "bytes: $text"

# One box per action, one row per rank.
"$tool" --name=zb_h1 --ranks=3 --microbatches=4 --draw="$folder/a.svg" >/dev/null
[[ $(grep -c '<title>' "$folder/a.svg") == 36 && $(grep -c 'rank [0-9]<' "$folder/a.svg") == 3 ]] || fail "picture: $(cat "$folder/a.svg")"
[[ $(head -c 4 "$folder/a.svg") == "<svg" && $(tail -n 1 "$folder/a.svg") == "</svg>" ]] || fail "no SVG"

printf '0F0,,0B0\r\n,1F0,1B0\r\n' >"$folder/good.csv"
json=$("$tool" --file="$folder/good.csv" --log_format=json)
[[ $json == *'"ranks":2,"chunks":1,"microbatches":1,"ok":true,"makespan":6.0,'* ]] || fail "file: $json"
# A printed configuration names every flag, and means the same.
"$tool" --file="$folder/good.csv" --log_format=json --print_config >"$folder/printed.json"
[[ $("$tool" --config="$folder/printed.json") == "$json" ]] || fail "--print_config with --file is another schedule"
printf '0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n' >"$folder/bad.csv"
status=0
json=$("$tool" --file="$folder/bad.csv" --log_format=json --draw="$folder/none.svg") || status=$?
[[ $status == 1 && $json == *'"ok":false,"makespan":null,"bubble":null,"peak_w":[],"peak_i":[],"error":"deadlock: rank 0 waits in 0B0 (action 1) for 1B0 of rank 1; '* ]] ||
  fail "status $status, $json"
# Of what cannot be read nobody knows the size.
status=0
json=$("$tool" --file="$folder/none.csv" --log_format=json) || status=$?
[[ $status == 1 && $json == *'"ranks":null,"chunks":null,"microbatches":null,"ok":false,"makespan":null,'*'"error":"cannot read '* ]] ||
  fail "status $status, $json"
[[ ! -e $folder/none.svg ]] || fail "a picture of what is not ok"
status=0
json=$("$tool" --name=dualpipev --ranks=4 --microbatches=7 --log_format=json) || status=$?
[[ $status == 1 && $json == *'"microbatches":7,"ok":false,'*"the nearest legal count is 8"* ]] || fail "status $status, $json"

"$tool" --help | grep -q '  interleaved_zb  ' || fail "--help does not list the schedules"

expect_error() {
  local expected=$1 output status=0
  shift
  output=$("$tool" "$@" 2>&1 >/dev/null) || status=$?
  [[ $status == 1 && $(wc -l <<<"$output") == 1 && $output == "error: $expected" ]] ||
    fail "$* gave status $status and: $output"
}
expect_error "--times=1,1: expected F,I,W, three times of 0 or more, such as 2,2,1" --times=1,1
expect_error "--times=1,-1,1: expected F,I,W, three times of 0 or more, such as 2,2,1" --times=1,-1,1
expect_error "schedule 1f1b: expected times that add up to a finite number, got 1e+308, 1 and 1 of F, I and W, 0 of a pair" --times=1e308,1,1
for bytes in 1 1,1,1 1,-1 1,x 1.5,1 1,2000000000000; do
  expect_error "--bytes=$bytes: expected SAVED,KEPT, two whole numbers of bytes from 0 to 2^40, such as 4096,1024" --bytes=$bytes
done
expect_error "--pairs=both: expected sequential, atomic or a time of 0 or more" --pairs=both
expect_error "--pairs=-1: expected sequential, atomic or a time of 0 or more" --pairs=-1
expect_error "--log_format=xml: expected text or json" --log_format=xml
expect_error "--ranks and --file: the file says it" --ranks=2 --file="$folder/good.csv"
expect_error "schedule 1f1b has 1 chunk per rank, got 2" --chunks=2
expect_error "schedule 1f1b: expected 1 to 10000 ranks, got 0" --ranks=0
expect_error "unknown schedule 'zb': expected one of 1f1b, dualpipev, gpipe, interleaved, interleaved_zb, looped_bfs, pipedream, pipedream_2bw, v_half, v_min, zb_h1, zb_h2, zbv" --name=zb
expect_error "schedule $folder/bad.csv: deadlock: rank 0 waits in 0B0 (action 1) for 1B0 of rank 1; rank 1 waits in 1F1 (action 0) for 0F1 of rank 0" --file="$folder/bad.csv"
expect_error "cannot read '$folder/none.csv': No such file or directory" --file="$folder/none.csv"
expect_error "--draw=/nowhere/at/all.svg: cannot be written" --draw=/nowhere/at/all.svg
echo PASS
