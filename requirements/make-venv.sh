#!/bin/sh
# make-venv.sh PYTHON DIRECTORY: a virtual environment; installs Debian's venv package when that is what is missing.
set -eu
python=$1 directory=$2
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "krm-runner needs Python 3.11 or newer as $python (or: make PYTHON=/path/to/python3.12)" >&2
    exit 1
}
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing python3-venv (once)"
        apt-get -qq update && apt-get -qq install -y python3-venv >/dev/null
    else
        echo "this Python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
# A half-made one from an interrupted run is made anew.
trap 'rm -rf "$directory"' INT TERM
"$python" -m venv --clear "$directory" || {
    rm -rf "$directory"
    exit 1
}
