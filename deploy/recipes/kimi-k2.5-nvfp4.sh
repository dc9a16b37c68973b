#!/bin/bash
# Kimi K2.5 in NVFP4 on four GPUs: kimi-k2.5-nvfp4.sh [FLAGS of kvfs run]
set -euo pipefail
exec "$(dirname "$(readlink -f "$0")")/with-owner.sh" --engine-memory 16GiB "$@" -- \
  vllm serve nvidia/Kimi-K2.5-NVFP4 --trust-remote-code --tensor-parallel-size 4 --enable-expert-parallel \
  --tool-call-parser kimi_k2 --enable-auto-tool-choice --reasoning-parser kimi_k2
