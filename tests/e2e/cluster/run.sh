#!/bin/sh
# run.sh [PYTEST FLAGS]: the tests on the cluster, in its network: first those that share it, side by side, then those
# that nothing else may disturb.
set -u
tests() {
    pytest tests/e2e/cluster --durations=10 "$@"
    code=$?
    # Flags may leave one of the two without a test.
    if [ "$code" -ne 0 ] && { [ "$code" -ne 5 ] || [ "$flags" -eq 0 ]; }; then
        exit "$code"
    fi
}
flags=$#
tests -m "not alone" --numprocesses=3 "$@"
tests -m alone "$@"
