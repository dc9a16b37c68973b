// Package memory reserves memory, waits for it, evicts blocks and expires them. Package room has
// the accounts, which are part of the state.
//
// It knows of a file that is being written only what it costs. Calls that wait (Reserve, WithRoom, CreateFile) are made
// without State.Mu. RunEvictor evicts in the background.
package memory
