# Counts the tests in what `bazel test` printed, from its closing table of one line a target:
#   //tests/mesh:layout_test                     (cached) PASSED in 0.1s
#   //tests/mesh:redistribution/region_test                      FAILED TO BUILD
# Prints "<passed> <failed> <skipped>", then a line for each that was skipped, "<label>: <why>". A test without a
# result (NO STATUS, a target that did not build) has failed.
#
# Bazel knows no skipped tests: they pass. Their logs, under the folder that `-v logs=` names, tell:
# - the last line is "skipped: <why>": the test is skipped and has not passed;
# - GoogleTest's "[  SKIPPED ] N tests, listed below:": N cases are skipped, and the test has passed but for them.
# A test that passed without a log has failed: nobody knows what it did.

# Adds what the log of a passed test says.
function read_log(label, path,    line, last, listed) {
  last = ""
  listed = 0
  while ((getline line < path) > 0) {
    if (line ~ /^\[  SKIPPED \] [0-9]+ tests?, listed below:/) {
      split(line, words, " ")
      skipped += words[4]
      listed = 1
    } else if (listed && line ~ /^\[  SKIPPED \]/) {
      sub(/^\[  SKIPPED \] /, "", line)
      reasons[++num_reasons] = label ": " line
    } else if (line ~ /[^ \t\r]/) {
      last = line
    }
  }
  close(path)
  if (last !~ /^skipped: /) return 0
  reasons[++num_reasons] = label ": " substr(last, length("skipped: ") + 1)
  return 1
}

function count_passed(label,    folder, command, path, num_logs, is_skipped) {
  folder = substr(label, 2)
  sub(/:/, "/", folder)
  command = "find '" logs folder "/' -name test.log 2>/dev/null | sort"
  is_skipped = num_logs = 0
  while ((command | getline path) > 0) {
    num_logs++
    if (read_log(label, path)) is_skipped = 1
  }
  close(command)
  if (num_logs == 0) {
    failed++
    print label ": passed, but has no log in " logs folder > "/dev/stderr"
  } else if (is_skipped) {
    skipped++
  } else {
    passed++
  }
}

/^\/\/[^ ]*:[^ ]+ +(\(cached\) )?(PASSED|FLAKY)/ { count_passed($1) }
/^\/\/[^ ]*:[^ ]+ +(\(cached\) )?(FAILED|TIMEOUT|INCOMPLETE|REMOTE FAILURE|NO STATUS)/ { failed++ }
END {
  print passed + 0, failed + 0, skipped + 0
  for (i = 1; i <= num_reasons; i++) print reasons[i]
}
