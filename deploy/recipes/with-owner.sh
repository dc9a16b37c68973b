#!/bin/bash
# Runs an engine beside a mount of the owner of this machine, and starts the owner if there is none. There is no
# master to start: owners find each other. with-owner.sh [FLAGS of kvfs run] -- CMD; --print shows what would run.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
exec kvfs run --mode standalone-store --owner-config "$here/owner.yaml" "$@"
