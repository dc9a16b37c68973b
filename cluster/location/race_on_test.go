//go:build race

package location

// The race detector makes everything several times slower: fewer entries then.
const mostEntries = 200_000
