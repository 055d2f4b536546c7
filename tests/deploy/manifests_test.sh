#!/bin/bash
# Runs manifests_test.py: its arguments are that program and the files it checks.
set -eu
exec python3 "$@"
