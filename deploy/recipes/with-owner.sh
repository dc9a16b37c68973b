#!/bin/bash
# Runs an engine beside a mount of the owner of this machine, which is started if none serves. There is no master
# to start: owners find each other. with-owner.sh [FLAGS of kvfs run] -- CMD; --print shows what would be run.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
exec kvfs run --mode standalone-store --owner-config "$here/owner.yaml" "$@"
