#!/bin/sh
# timed.sh STAGE COMMAND...: runs the command. Where STAGE_TIMES names a file, its seconds are appended to it: .ci/run
# prints them as a table.
stage=$1
shift
started=$(date +%s)
"$@"
code=$?
[ -z "${STAGE_TIMES:-}" ] || echo "$(($(date +%s) - started)) $code $stage" >>"$STAGE_TIMES"
exit "$code"
