#!/usr/bin/env bash
# README's two commands on a new machine: a container of Debian or Ubuntu with git, and none of make and Python.
#
#     tests/fresh/two-commands.sh CHECKOUT
#
# It installs what README names one after the other, as root. While something is missing, make must say what in one line.
# Then `make demo` runs without git, and `make test` with a selection of the tests.
# The folder /small must be a file system with less than 40 MB of space.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
log=$(mktemp)

install() {
  echo "two-commands: installing $*"
  apt-get install --quiet --quiet --yes --no-install-recommends "$@" >"$log" 2>&1 || { cat "$log"; exit 1; }
}

fails() {  # the line that a command must end with, and the command
  local line=$1 code=0
  shift
  "$@" >"$log" 2>&1 </dev/null || code=$?
  if [ $code -eq 0 ] || [ "$(grep -v '^make: \*\*\*' "$log" | tail -n 1)" != "$line" ]; then
    echo "two-commands: expected that $* fails with: $line"
    echo "two-commands: it exited with $code:"
    cat "$log"
    exit 1
  fi
  echo "two-commands: $line"
}

says_only() {  # the same, for a command that says nothing else
  fails "$@"
  [ "$(grep -vc '^make: \*\*\*' "$log")" -eq 1 ] || { cat "$log"; exit 1; }
}

apt-get update --quiet --quiet
install ca-certificates git
git config --global --add safe.directory '*'  # the checkout may belong to another user
git clone --quiet "file://$(realpath "$1")" /root/two-commands
cd /root/two-commands

says_only 'env: ‘make’: No such file or directory' env make demo
install make
says_only 'make: there is no python3; on Debian and Ubuntu: apt-get install python3-venv' make demo
install python3
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  says_only 'make: python3 is older than Python 3.11: make PYTHON=/path/to/python3.11 ...' make demo
  exit 0
fi
says_only 'make: python3 has no venv module; on Debian and Ubuntu: apt-get install python3-venv' make demo
install python3-venv
no_index=(PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS='' PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_RETRIES=0)
fails 'make: pip cannot reach its package index; behind a proxy or with a mirror, set HTTPS_PROXY or PIP_INDEX_URL' \
  make demo "${no_index[@]}"
fails 'make: no space is left in /small/venv or /tmp; to use another place: make VENV=/path/venv TMPDIR=/path ...' \
  make demo VENV=/small/venv

git=$(command -v git)
mv "$git" "$git.away"
echo "two-commands: make demo, without git"
make demo
mv "$git.away" "$git"

echo "two-commands: make test"
make test TESTS="tests/unit/protocol tests/integration/test_programs.py"
echo "two-commands: both ran"
