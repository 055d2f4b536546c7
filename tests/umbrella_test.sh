#!/usr/bin/env bash
# What the C++ of the pages names is in weft.h, or in a header that the page names: see umbrella_test.py beside this.
set -euo pipefail
exec python3 -B "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/umbrella_test.py"
