// Package vllm replays what vLLM does to files: the file system tier of its
// tiered offloading, its disk back-end of one large file, and ExampleConnector.
// docs/engines/vllm.md is the recipe.
package vllm
