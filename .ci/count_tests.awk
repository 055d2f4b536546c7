# Counts the tests in what `bazel test` printed, from its closing table of one line a target:
#   //tests/mesh:layout_test                     (cached) PASSED in 0.1s
#   //tests/mesh:region_test                      FAILED TO BUILD
# Prints "<passed> <failed>". A test without a result (NO STATUS, a target that did not build) has failed.
/^\/\/[^ ]*:[^ ]+ +(\(cached\) )?(PASSED|FLAKY)/ { passed++ }
/^\/\/[^ ]*:[^ ]+ +(\(cached\) )?(FAILED|TIMEOUT|INCOMPLETE|REMOTE FAILURE|NO STATUS)/ { failed++ }
END { print passed + 0, failed + 0 }
