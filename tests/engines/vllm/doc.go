// Package vllm replays what vLLM does to files: the file system tier of its tiered offloading.
// docs/engines/vllm.md is the recipe.
package vllm
