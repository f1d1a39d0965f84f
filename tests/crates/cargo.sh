# Read by the scripts beside it, from the root of the repository: they end here where there is no cargo. In CI nothing is
# skipped.
if ! command -v cargo >/dev/null; then
    if [ "${CI:-}" = true ]; then
        echo "$skipped: cargo (Rust 1.88 or later) must not be missing in CI" >&2
        exit 1
    fi
    echo "skipped: $skipped: no cargo (Rust 1.88 or later)"
    exit 0
fi
