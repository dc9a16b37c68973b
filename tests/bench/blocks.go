package main

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// paths are file names in the form of the kernel, in one allocation without pointers: a million of them neither slow
// nor wake the garbage collector.
type paths struct {
	flat   []byte
	stride int
}

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

func (p paths) text(i int) string { return unix.BytePtrToString(p.at(i)) }

// hashName is a name as engines give it to native blocks: 64 hexadecimal digits.
func hashName(i int) string {
	var index [8]byte
	binary.LittleEndian.PutUint64(index[:], uint64(i))
	return fmt.Sprintf("%x", sha256.Sum256(index[:]))
}

func blockName(i int) string { return hashName(i) + ".bin" }

// blockSet is a directory of blocks of one size on a target.
type blockSet struct {
	dir         string
	size, count int
	final, temp paths
}

// newBlockSet makes the directory; first is the index of the first block's name.
func newBlockSet(t *target, group string, size, first, count int) *blockSet {
	s := &blockSet{dir: t.dir + "/" + group, size: size, count: count}
	must(os.MkdirAll(s.dir, 0o755))
	s.final = newPaths(count, func(i int) string { return s.dir + "/" + blockName(first+i) })
	s.temp = newPaths(count, func(i int) string { return s.dir + "/" + blockName(first+i) + "_4553700977220842880.tmp" })
	return s
}

// store writes block i, stamped, over an existing one or not.
func (s *blockSet) store(c *client, i int) {
	c.stamp(i, s.size)
	c.store(s.temp.at(i), s.final.at(i), s.size)
}

func (s *blockSet) read(c *client, i int) { c.read(s.final.at(i), s.size) }

// readVerified checks what store has written, readMarked the first page of what storeMarked has.
func (s *blockSet) readVerified(c *client, i int) {
	s.read(c, i)
	checkMarks(c.buf[:s.size], i)
}

func (s *blockSet) readMarked(c *client, i int) {
	s.read(c, i)
	verifyFirst(c.buf[:s.size], i)
}

func (s *blockSet) openClose(_ *client, i int) { closeFd(open(s.final.at(i), unix.O_RDONLY)) }

func (s *blockSet) stat(c *client, i int) { c.stat(s.final.at(i), s.size) }

// fill stores all blocks twice and reads them back. The first time touches fresh memory; the second leaves the state
// for the timed passes.
func (j *job) fill(s *blockSet) {
	for _, op := range []func(*client, int){s.store, s.store, s.readVerified} {
		j.once(1, s.count, op)
	}
}

func (j *job) storeMarked(s *blockSet) {
	j.once(1, s.count, func(c *client, i int) {
		copy(c.buf[:s.size], j.pattern) // without marks of others
		stampPages(c.buf[:s.size], i)
		c.store(s.temp.at(i), s.final.at(i), s.size)
	})
}

// readWhole compares all bytes of each block that storeMarked has written.
func (j *job) readWhole(s *blockSet) func(*client, int) {
	return func(c *client, i int) {
		s.read(c, i)
		verifyPages(c.buf[:s.size], j.pattern, i)
	}
}

// clear removes the blocks, not the directory.
func (s *blockSet) clear() { s.clearSome(0, s.count) }

func (s *blockSet) clearSome(first, count int) {
	for i := first; i < first+count; i++ {
		// Go tries again if a signal ends the call.
		if err := os.Remove(s.final.text(i)); !errors.Is(err, os.ErrNotExist) {
			must(err)
		}
	}
}

func (s *blockSet) remove() {
	s.clear()
	must(os.Remove(s.dir))
}
