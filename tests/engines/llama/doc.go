// Package llama runs llama.cpp on a directory: one process evaluates a prompt and saves its state there, another
// loads the state and continues.
//
// The engine is the CPU build of llama.cpp in the npm package node-llama-cpp. The test writes the model (WriteModel),
// which has random weights. A state file is written in place: open with O_TRUNC, a few KiB at a time through stdio,
// no rename, no fsync, close errors ignored. It is read from its end first. llama.cpp aborts on a file that is
// shorter than it says.
//
// Prepare installs the package once into the user's cache directory, from the registry that npm is configured for.
// Later runs need no network. If Node 20, npm, the registry or a binary for the platform is missing, it says so.
//
// The tests run the engine on a plain directory and on a mount, with the mounts of an owner, and with states that are on
// SSD alone.
//
// After changing package.json, update the lock file in this directory with
//
//	npm install --package-lock-only --omit=optional --ignore-scripts
//
// # Decisions
//
// Probabilities are compared as well as tokens. One wrong page of a state often leaves the most probable token the
// same, but not the last bit of its probability. Both processes run the same kernels on one thread, so equal states
// give equal bits.
//
// The tests use Node's module and not llama-server, which has no binary on a package registry. Both call
// llama_state_seq_save_file and llama_state_seq_load_file.
package llama
