#!/bin/sh
# The generated code is what proto/ generates.
set -eu
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python -m grpc_tools.protoc -Iproto --python_out="$fresh" --pyi_out="$fresh" evaluator.proto front.proto
python proto/descriptors.py "$fresh/descriptors.bin"
for file in "$fresh"/*; do
    case $file in
        *.bin) kept=rust/engine/src/rpc/$(basename "$file") ;;
        *) kept=src/krm_runner/rpc/_generated/$(basename "$file") ;;
    esac
    cmp -s "$file" "$kept" || {
        echo "$kept is not what proto/ generates: run make proto" >&2
        exit 1
    }
done
