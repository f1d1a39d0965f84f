#!/bin/sh
# Builds functions of the kpt catalog, as they are released, into a directory: catalog.sh DIRECTORY [FUNCTION...]
# All of those below when none is named. A function that is there already is not built again. Needs Go, and its module
# proxy the first time.
set -eu
sums=$(cd "$(dirname "$0")" && pwd)/catalog.sum
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
only=" $* "
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT

# `go install module@version` needs a list of versions, which these modules have not: a module that requires one builds
# it. The hashes of what the public checksum database may not know are pinned in catalog.sum.
build() { # owner/repository function version
    package=github.com/$1/functions/go/$2 function=$2 version=$3
    case $only in
    *" $function "* | "  ") ;;
    *) return ;;
    esac
    if [ -x "$directory/$function-$version" ]; then
        return
    fi
    echo "building $function $version (once)" >&2
    cp "$sums" "$module/go.sum"
    printf 'module bench\n\ngo 1.24.0\n\nrequire %s %s\n' "$package" "$version" >"$module/go.mod"
    (
        cd "$module"
        CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false" \
            go build -trimpath -ldflags "-s -w" -o "$directory/$function-$version" "$package"
    )
}

# The catalog has moved: its older versions are modules of its old name.
build GoogleContainerTools/kpt-functions-catalog set-namespace v0.4.1
build kptdev/krm-functions-catalog set-namespace v0.4.5
build kptdev/krm-functions-catalog starlark v0.5.5
build kptdev/krm-functions-catalog apply-replacements v0.1.5
build kptdev/krm-functions-catalog apply-setters v0.2.2
