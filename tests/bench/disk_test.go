package main

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"
)

// A byte that changed anywhere, a page of another block or a swapped page shows.
func TestVerifyPages(t *testing.T) {
	const size = 10 * kib // The last page is not full.
	pattern := make([]byte, 16*kib)
	fillPattern(pattern)
	block := func(i int) []byte {
		buf := bytes.Clone(pattern[:size])
		stampPages(buf, i)
		return buf
	}
	wrong := func(buf []byte) bool { return try(func() { verifyPages(buf, pattern, 7) }) != nil }
	if wrong(block(7)) {
		t.Error("intact: taken for another")
	}
	for at := range size {
		buf := block(7)
		buf[at] ^= 1
		if !wrong(buf) {
			t.Fatalf("byte %d changed: not noticed", at)
		}
	}
	foreign := block(7)
	copy(foreign[pageBytes:2*pageBytes], block(8)[pageBytes:])
	swapped := slices.Concat(block(7)[pageBytes:2*pageBytes], block(7)[:pageBytes], block(7)[2*pageBytes:])
	for name, buf := range map[string][]byte{"foreign page": foreign, "swapped pages": swapped, "other block": block(8)} {
		if !wrong(buf) {
			t.Errorf("%s: not noticed", name)
		}
	}
}

func TestDrainRates(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name         string
		points       []drainPoint
		perSec, left float64
	}{
		{"over when status first answered", []drainPoint{{2 * s, 100}}, 50, 0},
		{"over, seen twice", []drainPoint{{2 * s, 100}, {4 * s, 100}}, 50, 0},
		{"little left", []drainPoint{{8 * s, 60}, {9 * s, 80}, {10 * s, 100}}, 10, 0.4},
		// A store was half done at 2 s: 30 at 3 s is no figure, 70 in 7 s is.
		{"most left", []drainPoint{{2 * s, 20}, {3 * s, 30}, {9 * s, 90}, {10 * s, 100}}, 10, 0.8},
		{"faster than the start", []drainPoint{{6 * s, 0}, {6 * s, 0}, {7 * s, 20}, {9 * s, 100}, {12 * s, 100}}, 40, 1},
		{"one leap", []drainPoint{{1 * s, 0}, {2 * s, 100}, {5 * s, 100}}, 50, 1},
		{"nothing", []drainPoint{{1 * s, 0}}, 0, 0},
	} {
		perSec, left := drainRates(c.points)
		if math.Abs(perSec-c.perSec) > 1e-9 || math.Abs(left-c.left) > 1e-9 {
			t.Errorf("%s: got %v a second, %v left, want %v and %v", c.name, perSec, left, c.perSec, c.left)
		}
	}
}
