#!/usr/bin/env bash
# Gloo's times for what //benchmarks:collectives measures: Gloo:NAME=NS,... on stdout, all else on stderr.
#
#   bazel run //benchmarks:collectives -- --peer="$(benchmarks/peers/gloo_collectives.sh)"
#
# Ranks are processes that talk over TCP on the loopback device, which is what PyTorch uses on CPUs: 2 and 4 of
# them, or RANKS="2". Sums are a loop of our own, compiled for this machine: Debian's Gloo has its own
# vectors off. Installs Debian's libgloo-dev if it is missing; where it cannot be had it says so, prints nothing
# and succeeds.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
has_gloo() { [[ -f /usr/include/gloo/allreduce.h ]]; }
has_gloo || { apt-get update && apt-get install -y libgloo-dev; } >&2 || true
if ! has_gloo; then
  echo "Gloo cannot be had here: skipped" >&2
  exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
g++ -std=c++17 -O3 -march=native -o "$dir/collectives" "$here/gloo_collectives.cc" -lgloo -lpthread >&2
entries=
for ranks in ${RANKS:-2 4}; do
  mkdir "$dir/$ranks"
  entries+=$("$dir/collectives" "$ranks" "$dir/$ranks")
done
echo "${entries#,}"
