#!/bin/sh
# side-by-side.sh STAGE PYTEST-ARGUMENTS...: first the tests that share the machine, by several workers, then those
# marked `alone`, which nothing else may disturb.
set -u
stage=$1
shift
# Most tests wait for something most of the time: more workers than CPUs.
workers=${TEST_WORKERS:-3}
run() {
    name=$1
    shift
    sh tests/timed.sh "$stage, $name" pytest "$@"
    code=$?
    # One of the two may have no test.
    [ "$code" -eq 0 ] || [ "$code" -eq 5 ] || exit "$code"
}
run "side by side" -m "not alone" --numprocesses="$workers" "$@"
shared=$code
run alone -m alone "$@"
# Where neither has any, something is wrong with the arguments.
[ "$shared" -eq 0 ] || exit "$code"
