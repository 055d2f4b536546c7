#!/usr/bin/env bash
# What docs/pipeline.md shows is what tools/schedule prints and draws. Arguments: the page, the program.
#
#   a block that begins with "$ bazel run"        its command prints the lines below
#   a line "bazel run ... --draw=docs/pipeline/X"  its command draws that file
#   a row "| `NAME` | CHUNKS | ..."                three bubbles and the most activations, of 4 ranks and 8 microbatches
#   a row "| `PAIRS` | MAKESPAN |"                 of dualpipev at the same size
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/page_blocks.sh"
page=$1
tool=$2
docs=$(dirname "$page")
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/pipeline_page.XXXXXX")
failed=0

fail() {
  echo "FAILED: $*" >&2
  failed=1
}

# field NAME JSON: a number, without ".0".
field() {
  sed -E 's/.*"'"$1"'":([^,]*),.*/\1/; s/\.0$//' <<<"$2"
}

check_row() {
  local name=$1 chunks=$2 equal=$3 short_w=$4 long_i=$5 activations=$6 json times expected peak
  for times in 1,1,1=$equal 2,2,1=$short_w 2,3,2=$long_i; do
    json=$("$tool" --name="$name" --chunks="$chunks" --ranks=4 --microbatches=8 --times="${times%=*}" --log_format=json)
    expected=${times#*=}
    [[ $(field bubble "$json") == "$expected" ]] || fail "bubble of $name, $times, in the page: $json"
  done
  peak=$(sed -E 's/.*"peak_w":\[([0-9,]*)\].*/\1/' <<<"$json" | tr ',' '\n' | sort -n | tail -n 1)
  [[ $(awk -v peak="$peak" -v chunks="$chunks" 'BEGIN { print peak / chunks }') == "$activations" ]] ||
    fail "activations of $name: $activations in the page, $peak chunks"
}

blocks=0
pictures=0
rows=0
pairs=0

check_command() {
  local words
  read -ra words <<<"${1#'//tools:schedule -- '}"
  diff <(printf '%s\n' "$2") <("$tool" "${words[@]}") || fail "'$1' prints something else (page < > printed)"
  blocks=$((blocks + 1))
}
each_command "$page" check_command

while IFS= read -r line; do
  if [[ $line == '    bazel run //tools:schedule -- '*' --draw=docs/pipeline/'* ]]; then
    read -ra words <<<"${line#*' -- '}"
    file=${words[-1]#--draw=docs/}
    "$tool" "${words[@]::${#words[@]}-1}" --draw="$folder/drawn.svg" >/dev/null
    cmp "$folder/drawn.svg" "$docs/$file" || fail "$file is not what its command draws"
    pictures=$((pictures + 1))
  elif [[ $line =~ ^\|\ \`([a-z0-9_]+)\`\ \|\ ([0-9]+)\ \|\ ([0-9.]+)\ \|\ ([0-9.]+)\ \|\ ([0-9.]+)\ \|[^\|]*\|\ ([0-9.]+)\ \| ]]; then
    check_row "${BASH_REMATCH[@]:1}"
    rows=$((rows + 1))
  elif [[ $line =~ ^\|\ \`([a-z0-9]+)\`\ \|\ ([0-9.]+)\ \|$ ]]; then
    json=$("$tool" --name=dualpipev --ranks=4 --microbatches=8 --pairs="${BASH_REMATCH[1]}" --log_format=json)
    [[ $(field makespan "$json") == "${BASH_REMATCH[2]}" ]] || fail "$line: $json"
    pairs=$((pairs + 1))
  fi
done <"$page"
# A page whose parts are not found would pass otherwise.
[[ "$blocks $pictures $rows $pairs" == "3 11 14 3" ]] ||
  fail "found $blocks blocks, $pictures pictures, $rows rows and $pairs pairs, expected 3, 11, 14 and 3"
exit $failed
