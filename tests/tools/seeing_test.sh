#!/usr/bin/env bash
# What a page of docs shows is what its commands print. Arguments: the page, its picture, then pairs of a program's
# label and its path. A block of the page that begins with "$ bazel run LABEL" is run and compared with the lines
# below; one that ends with "> docs/layout.svg" is compared with that file.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/page_blocks.sh"
page=$1
picture=$2
shift 2
declare -A program
while (($# > 0)); do
  program[$1]=$2
  shift 2
done

failed=0
blocks=0
check() {
  local command=$1 expected=$2 label arguments
  blocks=$((blocks + 1))
  label=${command%% *}
  arguments=${command#"$label"}
  arguments=${arguments# -- }
  if [[ -z ${program[$label]:-} ]]; then
    echo "FAILED: the page runs $label, which this test was not given" >&2
    failed=1
    return
  fi
  if [[ $arguments == *" > docs/layout.svg" ]]; then
    arguments=${arguments% > docs/layout.svg}
    expected=$(cat "$picture")
  fi
  local words=()
  # The page's quotes group words as a shell's do.
  [[ -z $arguments ]] || mapfile -t words < <(xargs -n1 printf '%s\n' <<<"$arguments")
  if ! diff <(echo "$expected") <("${program[$label]}" "${words[@]}"); then
    echo "FAILED: '$command' prints something else (expected < > printed)" >&2
    failed=1
  fi
}

each_command "$page" check
# A page whose blocks are not found would pass otherwise.
if ((blocks < 4)); then
  echo "FAILED: found $blocks blocks to check, expected at least 4" >&2
  failed=1
fi
exit $failed
