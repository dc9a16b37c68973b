package sglang

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

const (
	model   = "meta-llama-Llama-3.1-8B-Instruct"
	storage = "sglang" // SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR, below the mount

	// Template is where a page is below the mount, of one rank of one.
	Template = storage + "/{hash}_" + model + "_{rank}_1.bin"
)

// fallocateFrom is the size from which numpy reserves room.
const fallocateFrom = 16 << 20

// rank is the file back-end of one rank: one thread that looks up, one that
// loads, one that stores. A mutex stands for each.
type rank struct {
	dir                   string
	query, prefetch, back sync.Mutex
	// dead says that the prefetch thread has ended: it survives no error but
	// that of a file which is not there. The mutex prefetch guards it.
	dead bool
}

// start makes a rank.
func start(dir string) (func(int) replay.Engine, error) {
	if !replay.Exists(dir) {
		if err := replay.MakeDirs(dir); err != nil {
			return nil, err
		}
	}
	r := &rank{dir: dir}
	return func(worker int) replay.Engine { return &request{rank: r, thread: worker} }, nil
}

// request is a request under way.
type request struct {
	*rank
	thread int
}

// name is that of a page.
func name(b replay.Block) string { return fmt.Sprintf("%s_%s_0_1.bin", b.Hash, model) }

func (r *rank) path(b replay.Block) string { return r.dir + "/" + name(b) }

// Lookup implements replay.Engine.
func (q *request) Lookup(b replay.Block) bool {
	q.query.Lock()
	defer q.query.Unlock()
	_, err := replay.Stat(q.path(b))
	return err == nil
}

// Load implements replay.Engine: open, fstat, one read.
func (q *request) Load(b replay.Block, p []byte) error {
	q.prefetch.Lock()
	defer q.prefetch.Unlock()
	if q.dead {
		return errors.New("the prefetch thread is dead")
	}
	err := load(q.path(b), p)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", replay.ErrMiss, err)
	}
	q.dead = err != nil && !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED)
	return err
}

func load(path string, p []byte) error {
	f, err := replay.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Size(); err != nil {
		return err
	}
	return f.Read(p)
}

// Store implements replay.Engine.
func (q *request) Store(b replay.Block, p []byte) error {
	q.back.Lock()
	defer q.back.Unlock()
	final := q.path(b)
	if _, err := replay.Stat(final); err == nil {
		return nil
	}
	tmp := fmt.Sprintf("%s.tmp.%d.%d.%016x%016x", final, os.Getpid(), 139764274520768+q.thread, rand.Uint64(), rand.Uint64())
	err := tofile(tmp, p)
	if err == nil {
		err = replay.Rename(tmp, final)
	}
	if err != nil {
		replay.Unlink(tmp)
	}
	return err
}

// tofile is numpy's: it writes to a duplicate of Python's descriptor, so that
// the file is closed twice.
func tofile(path string, p []byte) error {
	f, err := replay.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := f.Size(); err != nil || n != 0 || f.Terminal() {
		return errors.Join(err, fmt.Errorf("a new file of %d bytes", n))
	}
	f.Seek(0, unix.SEEK_CUR)
	d, err := f.Dup()
	if err != nil {
		return err
	}
	err = writeDup(d, p)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	f.Seek(0, unix.SEEK_SET)
	_, err = f.Seek(int64(len(p)), unix.SEEK_SET)
	return err
}

func writeDup(d replay.File, p []byte) error {
	d.Seek(0, unix.SEEK_CUR)
	if _, err := d.Size(); err != nil {
		return err
	}
	d.Seek(0, unix.SEEK_SET)
	if len(p) >= fallocateFrom {
		if err := d.Fallocate(unix.FALLOC_FL_KEEP_SIZE, int64(len(p))); errors.Is(err, unix.ENOSPC) {
			return err // it ignores any other
		}
	}
	if err := d.Write(p); err != nil {
		return err
	}
	if at, err := d.Seek(0, unix.SEEK_CUR); err != nil || at != int64(len(p)) {
		return errors.Join(err, fmt.Errorf("at %d after %d bytes", at, len(p)))
	}
	return nil
}
