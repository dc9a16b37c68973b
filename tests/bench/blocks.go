package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// paths are file names in the form of the kernel, in one allocation without pointers: a million of
// them neither slow nor wake the garbage collector.
type paths struct {
	flat   []byte
	stride int
}

// newPaths makes count paths of equal length.
func newPaths(count int, name func(i int) string) paths {
	p := paths{stride: len(name(0)) + 1}
	p.flat = make([]byte, 0, count*p.stride)
	for i := range count {
		p.flat = append(append(p.flat, name(i)...), 0)
	}
	return p
}

// at returns path i as a C string, valid as long as p.
func (p paths) at(i int) *byte { return &p.flat[i*p.stride] }

// blockName is a name as engines use it: 64 hexadecimal digits.
func blockName(i int) string {
	var index [8]byte
	binary.LittleEndian.PutUint64(index[:], uint64(i))
	return fmt.Sprintf("%x.bin", sha256.Sum256(index[:]))
}

// blockSet is a directory of blocks of one size on a target.
type blockSet struct {
	dir   string
	size  int
	count int
	final paths
	temp  paths
}

// newBlockSet makes the directory; first is the index of the first block's name.
func newBlockSet(t *target, group string, size, first, count int) (*blockSet, error) {
	s := &blockSet{dir: t.dir + "/" + group, size: size, count: count}
	if err := os.Mkdir(s.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	s.final = newPaths(count, func(i int) string {
		return s.dir + "/" + blockName(first+i)
	})
	s.temp = newPaths(count, func(i int) string {
		return s.dir + "/" + blockName(first+i) + "_4553700977220842880.tmp"
	})
	return s, nil
}

// store writes block i, stamped, over an existing one or not.
func (s *blockSet) store(c *client, i int) error {
	c.stamp(i, s.size)
	return c.store(s.temp.at(i), s.final.at(i), s.size)
}

func (s *blockSet) read(c *client, i int) error { return c.read(s.final.at(i), s.size) }

func (s *blockSet) readVerified(c *client, i int) error {
	if err := c.read(s.final.at(i), s.size); err != nil {
		return err
	}
	return c.verify(i, s.size)
}

func (s *blockSet) openClose(c *client, i int) error { return c.openClose(s.final.at(i)) }

func (s *blockSet) stat(c *client, i int) error { return c.stat(s.final.at(i), s.size) }

// fill stores all blocks twice and reads them back. The first time touches fresh memory; the second
// leaves the state for the timed passes.
func (s *blockSet) fill(ctx context.Context, p *pool) error {
	for _, op := range []func(*client, int) error{s.store, s.store, s.readVerified} {
		if err := p.once(ctx, newWork(1, s.count, op)); err != nil {
			return fmt.Errorf("%s: %w", s.dir, err)
		}
	}
	return nil
}

// clear removes the blocks, not the directory.
func (s *blockSet) clear() error {
	for i := range s.count {
		err := os.Remove(unix.BytePtrToString(s.final.at(i))) // again if a signal ends it, as SeaweedFS lets it
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *blockSet) remove() error { return errors.Join(s.clear(), os.Remove(s.dir)) }
