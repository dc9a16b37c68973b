// Package llmd replays what llm-d does to files: its file system back-end for
// vLLM, and the evictor of its volumes. docs/engines/llm-d.md is the recipe.
package llmd
