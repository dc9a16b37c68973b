package nixl

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// openDynamo makes the file of Dynamo's disk tier: one of the size of the whole
// tier, without a name for all of its life. With openDirect O_DIRECT is a flag of
// open; else it is set afterwards.
func openDynamo(dir string, size int64, openDirect bool) (replay.File, error) {
	if err := replay.MakeDirs(dir); err != nil {
		return -1, err
	}
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_EXCL
	if openDirect {
		flags |= unix.O_DIRECT
	}
	path := fmt.Sprintf("%s/dynamo-kvbm-disk-cache-%06x", dir, rand.Uint32()&0xffffff)
	f, err := replay.Open(path, flags, 0o600)
	if err != nil {
		return -1, err
	}
	if err := prepare(f, size, openDirect); err != nil {
		return -1, errors.Join(err, f.Close(), replay.Unlink(path))
	}
	return f, replay.Unlink(path)
}

func prepare(f replay.File, size int64, openDirect bool) error {
	if !openDirect {
		flags, err := unix.FcntlInt(uintptr(f), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(f), unix.F_SETFL, flags|unix.O_DIRECT); err != nil {
			return err
		}
	}
	return f.Fallocate(0, size)
}
