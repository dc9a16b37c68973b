// Package launch decides which environment variables and flags kvfs adds to a command, so that
// an inference engine keeps its KV blocks below a mount. It explains what it leaves out.
//
// It is pure: Make looks at a command line, an environment and a mount, and
// starts nothing.
//
// # The rule
//
// It never changes what the command or the environment already sets. An option counts as given
// in any form that the engine takes: --x v, --x=v, --x_y for --x-y, --x.key v, an abbreviation,
// repeated, or in a configuration file that the command names. If launch cannot know what a
// command does, it adds only the KVFS_ variables, and a line gives the reason.
//
// # Sources
//
// The names of options, variables and keys are from these versions:
//
//	vLLM       docs/features/kv_offloading_usage.md of v0.26.0 to v0.32.0,
//	           vllm/utils/argparse_utils.py of 2026-08
//	SGLang     python/sglang/launch_server.py and
//	           srt/mem_cache/hicache_storage.py (HiCacheFile) of 2026-08
//	LMCache    lmcache/v1/config.py, config_base.py and
//	           storage_backend/connector of 2026-05; docs.lmcache.ai, fs and mp
//	llama.cpp  common/arg.cpp, tools/server of 2026-04
package launch
