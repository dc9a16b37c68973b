// Package sglang replays what SGLang's HiCache does to files with its file
// back-end. docs/engines/sglang.md is the recipe; the NIXL back-end is in
// package nixl.
package sglang
