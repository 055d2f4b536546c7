#!/bin/bash
# Loopback is bound by address: test programs pass where no name has one, localhost included, as on a machine without
# /etc/hosts and without a network.
# Arguments: test programs, each after the --gtest_filter that it gets.
set -u
. tests/in_namespace.sh
enter_namespaces --net --mount --pid --fork --mount-proc -- "$@"
for file in /etc/hosts /etc/resolv.conf /etc/nsswitch.conf; do
  if [[ -e $file ]]; then mount --bind /dev/null "$file" || exit 1; fi
done
ip link set lo up || exit 1
if getent ahosts localhost; then
  echo "FAILED: localhost has an address still" >&2
  exit 1
fi
# Shards and reports are of the test that runs these.
unset TEST_TOTAL_SHARDS TEST_SHARD_INDEX TEST_SHARD_STATUS_FILE XML_OUTPUT_FILE
failures=0
while (($# > 0)); do
  "$2" "$1" || failures=$((failures + 1))
  shift 2
done
exit $((failures > 0))
