# shellcheck shell=bash
# What .ci/run and .ci/nightly are made of, to be sourced in the tree's root.
#
# Every step runs, whatever became of those before it. A step counts as one; of `tests` every test counts. `finish` prints
# the time of each and the closing line, "N passed, N failed, N skipped".

passed=0
failed=0
skipped=0
times=()  # "<seconds> <what became of it> <step>"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plain=(--color=no --curses=no --noshow_progress --show_result=0 --keep_going)

# step NAME COMMAND...: runs it and counts it as one.
step() {
  local name=$1 begin=$SECONDS verdict=passed
  shift
  echo "=== $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    verdict=FAILED
  fi
  times+=("$((SECONDS - begin)) $verdict $name")
  echo "=== $name: $verdict in $((SECONDS - begin)) s"
}

# tests NAME ARGUMENTS...: `bazel test` with these arguments, and counts each test.
tests() {
  local name=$1 begin=$SECONDS status configs logs counts
  shift
  echo "=== $name"
  bazel test "${plain[@]}" --test_output=errors "$@" 2>&1 | tee "$work/log"
  status=${PIPESTATUS[0]}
  mapfile -t configs < <(printf '%s\n' "$@" | grep '^--config=')
  logs=$(bazel info "${configs[@]}" bazel-testlogs 2>/dev/null)
  awk -v "logs=$logs" -f .ci/count_tests.awk "$work/log" >"$work/counts"
  read -r -a counts <"$work/counts"
  # Bazel may fail with no test to blame: a library that does not build, a broken BUILD file, no tests at all.
  if [[ $status != 0 && ${counts[1]} == 0 ]]; then counts[1]=1; fi
  passed=$((passed + counts[0]))
  failed=$((failed + counts[1]))
  skipped=$((skipped + counts[2]))
  echo "=== $name: the longest tests"
  longest_tests "$work/log"
  sed -n '2,$s/^/=== skipped: /p' "$work/counts"
  times+=("$((SECONDS - begin)) ${counts[0]}_passed,_${counts[1]}_failed,_${counts[2]}_skipped $name")
  echo "=== $name: ${counts[0]} passed, ${counts[1]} failed, ${counts[2]} skipped in $((SECONDS - begin)) s"
}

# The ten tests of Bazel's table that took longest; a test of several shards by its longest one.
longest_tests() {
  awk '/^\/\/[^ ]*:[^ ]+ .* in [0-9.]+s$/ {
    seconds = $NF
    sub(/s$/, "", seconds)
    printf "%8.1f s  %s\n", seconds, $1
  }' "$1" | sort -rn | head -10
}

# outside_workspace LABEL FLAG...: tests of a user's workspace, where paths differ. All of it is analysed, whichever are run.
outside_workspace() {
  (cd tests/outside_workspace && bazel build "${plain[@]}" --nobuild //... &&
    bazel test "${plain[@]}" --test_output=errors "$@" && bazel shutdown)
}

# left_out WHY TAG...: says how many tests the tags keep from running here.
left_out() {
  local why=$1 tag labels
  shift
  for tag in "$@"; do
    mapfile -t labels < <(tagged "$tag")
    if [[ ${#labels[@]} -gt 0 ]]; then echo "=== left out: ${#labels[@]} tests tagged $tag: $why"; fi
  done
}

# tagged TAG: the labels of the tests that have it, one per line.
tagged() { bazel query "attr(tags, '[\[ ]$1[,\]]', tests(//tests/...))" 2>/dev/null; }

# The times and the closing line; false if anything failed.
finish() {
  local entry seconds verdict name
  echo "=== times"
  for entry in "${times[@]}"; do
    read -r seconds verdict name <<<"$entry"
    printf '%7d s  %-36s %s\n' "$seconds" "$name" "${verdict//_/ }"
  done
  printf '%7d s  in all\n' "$SECONDS"
  echo "$passed passed, $failed failed, $skipped skipped"
  [[ $failed == 0 ]]
}
