//go:build !cgo

package nic

import "errors"

// nvidia returns a library without GPUs: the NVIDIA library needs cgo.
func nvidia() Library { return noLibrary{} }

type noLibrary struct{}

func (noLibrary) List() ([]GPU, error) {
	return nil, errors.New("built without cgo: no GPU is seen")
}
