#!/bin/bash
# Runs check_packages_test.py: its arguments are that program and tools/check_packages.py.
set -eu
exec python3 "$@"
