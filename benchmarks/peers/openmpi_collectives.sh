#!/usr/bin/env bash
# OpenMPI's times for what //benchmarks:collectives measures: OpenMPI:NAME=NS,... on stdout, all else on stderr.
#
#   bazel run //benchmarks:collectives -- --peer="$(benchmarks/peers/openmpi_collectives.sh)"
#
# Ranks are processes that share memory: 2 and 4 of them, or RANKS="2". Installs Debian's libopenmpi-dev and
# openmpi-bin if they are missing; where they cannot be had it says so, prints nothing and succeeds.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v mpicxx >/dev/null || ! command -v mpirun >/dev/null; then
  { apt-get update && apt-get install -y libopenmpi-dev openmpi-bin; } >&2 || true
fi
if ! command -v mpicxx >/dev/null || ! command -v mpirun >/dev/null; then
  echo "OpenMPI cannot be had here: skipped" >&2
  exit 0
fi
dir=$(mktemp -d /tmp/openmpi.XXXXXX)  # a short path: OpenMPI makes sockets in it
trap 'rm -rf "$dir"' EXIT
mpicxx -std=c++17 -O3 -march=native -DOMPI_SKIP_MPICXX -o "$dir/collectives" "$here/openmpi_collectives.cc" >&2
entries=
for ranks in ${RANKS:-2 4}; do
  entries+=$(TMPDIR=$dir mpirun -n "$ranks" --oversubscribe --allow-run-as-root --mca btl self,vader "$dir/collectives")
done
echo "${entries#,}"
