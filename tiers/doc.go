// Package tiers is the engine: it stores, cascades, promotes, pins, evicts and
// removes blocks across tiers, and tells subscribers about it.
package tiers
