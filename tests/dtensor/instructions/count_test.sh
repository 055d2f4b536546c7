#!/usr/bin/env bash
# Counts the instructions of cached calls, and of training steps, under valgrind's callgrind, and holds them to their limits
# and to what was recorded, give or take 5%. What Grad costs is held to grow with the graph, and not with the graph times the
# inputs.
#
#   count_test.sh COUNTED_CALLS RECORDED
#
# To record anew, after a change that is meant: bazel test //tests/dtensor/instructions:count_test --test_output=all
# and put the lines between the rulers into recorded.txt.
#
# The counts of calls are exact and the same on every run; those of steps vary by 0.3%, with what lanes have done by then. They
# follow from the default build (compiler, flags), from libc and Abseil (Debian 12's), and, by the few instructions of the kernel
# and of memory functions that are chosen at run time, from which vectors valgrind offers: 256 bits wide wherever the CPU has
# AVX2, whatever else it has.
set -euo pipefail

binary=$1
recorded=$2
failed=0

command -v valgrind >/dev/null || { echo "there is no valgrind: run ./setup.sh" >&2; exit 1; }

# count CASE: instructions of one call.
count() {
  local log num_calls=1000
  [[ $1 != gpt_step_* && $1 != grad_of_* ]] || num_calls=10
  log=$(valgrind --tool=callgrind --toggle-collect=CountedCalls --callgrind-out-file=/dev/null \
    "$binary" "$1" "$num_calls" 2>&1) || { echo "$log" >&2; return 1; }
  awk -v n="$num_calls" '/Collected/ { printf "%.0f\n", $NF / n; found = 1 } END { exit !found }' <<<"$log"
}

echo "---- case, limit (- for none), instructions a call"
while read -r name limit before; do
  [[ -z $name || $name == \#* ]] && continue
  now=$(count "$name") || { echo "$name: callgrind failed" >&2; exit 1; }
  echo "$name $limit $now"
  if [[ $limit != - && $now -gt $limit ]]; then
    echo "$name takes $now instructions, at most $limit are allowed" >&2
    failed=1
  fi
  if ((now * 100 < before * 95 || now * 100 > before * 105)); then
    echo "$name takes $now instructions, recorded are $before: more than 5% apart" >&2
    failed=1
  fi
done <"$recorded"
echo "----"

# Of one graph, to all of which the 10 lead: the others are delivered besides. To go through all inputs at each node would be
# many times the cost of the graph.
few=$(count grad_of_few) || { echo "grad_of_few: callgrind failed" >&2; exit 1; }
many=$(count grad_of_many) || { echo "grad_of_many: callgrind failed" >&2; exit 1; }
if ((many > 4 * few)); then
  echo "Grad of 1000 inputs takes $many instructions, of 10 inputs of the same graph $few: more than 4 times as many" >&2
  failed=1
fi
exit "$failed"
