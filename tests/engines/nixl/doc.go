// Package nixl replays what NIXL's POSIX plugin does to files for its callers:
// LMCache's pool of files, Dynamo's disk tier of one large file, and SGLang's
// HiCache with the NIXL back-end. docs/engines/nixl.md and dynamo.md are the recipes.
package nixl
