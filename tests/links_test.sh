#!/usr/bin/env bash
# What the Markdown files of the tree name is there: see links_test.py beside this.
set -euo pipefail
exec python3 -B "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/links_test.py"
