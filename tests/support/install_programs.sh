#!/bin/sh
# Installs Debian packages that are missing, as root with apt-get. Elsewhere it says so, and their tests are skipped.
for package; do
  dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null 2>&1
  apt-get install -y -q --no-install-recommends $missing >/dev/null 2>&1 && exit 0
fi
echo "not installed:$missing; tests that need them are skipped unless they are here under another name"
