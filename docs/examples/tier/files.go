// Package tier is a complete type of tier, as another program would add one: a directory with a file for each block.
// One line in cmd/kvfs/types.go adds it to kvfs:
//
//	r.Register("files", func() driver.Opener { return &tier.Options{} }),
//
// The configuration then lists it:
//
//	tiers: [{type: files, root: /mnt/nfs/kvfs}]
package tier

import (
	"context"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/blobs"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Options are the keys of an entry of tiers with this type.
type Options struct {
	Root string `kvfs:"root" holds:"path" required:"true" help:"Directory, made if it is absent."`
}

// Open implements driver.Opener.
func (o *Options) Open(_ context.Context, name string, log *zap.Logger) (driver.Tier, error) {
	if err := os.MkdirAll(o.Root, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Root, "blocks")
	if err != nil {
		return nil, err
	}
	log.Info("open", zap.String("tier", name), zap.String("dir", dir))
	return blobs.New(name, files(dir)), nil
}

// files is a directory, as a blobs.Store.
type files string

// Put implements blobs.Store.
func (d files) Put(_ context.Context, name string, data []byte) error {
	return os.WriteFile(filepath.Join(string(d), name), data, 0o600)
}

// Get implements blobs.Store.
func (d files) Get(_ context.Context, name string, data []byte) error {
	got, err := os.ReadFile(filepath.Join(string(d), name))
	copy(data, got)
	return err
}

// Delete implements blobs.Store.
func (d files) Delete(name string) { os.Remove(filepath.Join(string(d), name)) }

// Close implements blobs.Store.
func (d files) Close() error { return os.RemoveAll(string(d)) }
