#!/usr/bin/env bash
# The library reads what it uses, though the build of this tree gives it more: see includes_test.py beside this.
set -euo pipefail
exec python3 -B "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/includes_test.py"
