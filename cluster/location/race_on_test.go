//go:build race

package location

// The race detector makes everything several times slower, so there are fewer entries.
const mostEntries = 200_000
