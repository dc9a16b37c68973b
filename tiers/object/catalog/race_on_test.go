//go:build race

package catalog

// The race detector makes everything several times slower, so there are fewer blocks.
const mostBlocksTested = 150_000
