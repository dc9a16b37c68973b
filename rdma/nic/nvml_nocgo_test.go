//go:build !cgo

package nic

import "testing"

// TestNoCgo shows that a program without cgo says in one line why it sees no GPUs.
func TestNoCgo(t *testing.T) {
	inv, err := Discover(Options{Sysfs: dgxH100().build(t)})
	must(t, err)
	if want := "built without cgo: no GPU is seen"; inv.GPUError != want || len(inv.GPUs) != 0 || len(inv.Devices) != 12 {
		t.Errorf("got %q, %d GPUs, %d devices; want %q", inv.GPUError, len(inv.GPUs), len(inv.Devices), want)
	}
}
