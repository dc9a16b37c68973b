// Package gpu copies blocks of a real mount to a GPU: the pages of a block are mapped,
// registered with the driver of the GPU and read by its copy engine, without a copy by a
// processor.
//
// NVIDIA's driver library is opened at run time, through cgo: the package builds without
// CUDA, and where there is no library, no GPU or no cgo, its tests are skipped and say
// why. Run it with -v for the figures:
//
//	go test -v ./tests/gpu
package gpu
