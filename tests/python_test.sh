#!/usr/bin/env bash
# Runs a test in Python: its arguments are that program and the program's own.
set -euo pipefail
exec python3 "$@"
