module github.com/kvfs/kvfs

go 1.26.0

require (
	github.com/hanwen/go-fuse/v2 v2.12.1
	github.com/minio/crc64nvme v1.1.1
	github.com/pawelgaczynski/giouring v0.0.0-20230826085535-69588b89acb9
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.9
	go.uber.org/zap v1.28.0
	go.yaml.in/yaml/v3 v3.0.6
	golang.org/x/sys v0.49.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/klauspost/cpuid/v2 v2.2.9 // indirect
	go.uber.org/multierr v1.10.0 // indirect
)
