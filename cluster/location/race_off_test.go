//go:build !race

package location

const mostEntries = 1_000_000
