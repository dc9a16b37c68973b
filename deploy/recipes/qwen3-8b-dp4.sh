#!/bin/bash
# Qwen3 8B, four replicas on one machine (mndp.yaml): qwen3-8b-dp4.sh [FLAGS of kvfs run]
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
exec "$here/with-owner.sh" "$@" -- vllm serve Qwen/Qwen3-8B --config "$here/mndp.yaml"
