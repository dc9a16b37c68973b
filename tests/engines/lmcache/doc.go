// Package lmcache replays what LMCache does to files: its remote back-end on a
// directory (FSConnector), its local disk, and the native file system adapter of
// its multi-process mode. docs/engines/lmcache.md is the recipe; the NIXL pools
// are in package nixl.
package lmcache
