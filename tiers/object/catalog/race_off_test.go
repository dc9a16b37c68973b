//go:build !race

package catalog

const mostBlocksTested = 1_000_000
