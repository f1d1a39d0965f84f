#!/bin/sh
# The generated code is what proto/ generates.
set -eu
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python -m grpc_tools.protoc -Iproto --python_out="$fresh" --pyi_out="$fresh" evaluator.proto
for file in "$fresh"/*; do
    cmp -s "$file" "src/krm_runner/rpc/_generated/$(basename "$file")" || {
        echo "src/krm_runner/rpc/_generated/$(basename "$file") is not what proto/ generates: run make proto" >&2
        exit 1
    }
done
