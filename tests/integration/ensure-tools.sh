#!/bin/sh
# Makes sure that there are a registry, image tools and Node.js for the tests: CI installs what is missing, elsewhere their
# tests skip.
set -eu
missing=
for pair in docker-registry:docker-registry skopeo:skopeo umoci:umoci htpasswd:apache2-utils openssl:openssl \
    node:nodejs; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
if [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    # shellcheck disable=SC2086 # a list of packages
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
else
    echo "tests that need them will be skipped; on Debian: apt-get install$missing"
fi
