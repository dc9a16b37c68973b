// Package lmcache replays what LMCache does to files in its remote back-end on a directory (FSConnector).
// docs/engines/lmcache.md is the recipe; the NIXL pools are in package nixl.
package lmcache
