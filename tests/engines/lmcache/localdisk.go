package lmcache

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// localDisk is the local disk back-end of one process. What is on disk only the
// index in its memory knows: it looks at nothing else, and a file that is in the
// index and not on disk is an exception.
type localDisk struct {
	dir    string
	max    int64 // max_local_disk_size
	direct bool  // use_odirect: neither O_TRUNC nor a look at what write says

	workers chan struct{} // a token for each of the 4 threads

	mu struct {
		sync.Mutex
		index map[string]*entry // by name
		order []string          // the least recently used first
		used  int64
	}
}

type entry struct {
	size int64
	pins int // requests that have looked it up and not loaded it yet
}

const diskThreads = 4

// startDisk returns a maker of back-ends, with an empty index whatever is on
// disk.
func startDisk(max int64, direct bool) replay.Maker {
	return func(dir string) (func(int) replay.Engine, error) {
		if err := replay.MakeDirs(dir); err != nil {
			return nil, err
		}
		e := &localDisk{dir: dir, max: max, direct: direct, workers: make(chan struct{}, diskThreads)}
		e.mu.index = map[string]*entry{}
		return func(int) replay.Engine { return e }, nil
	}
}

func (e *localDisk) path(name string) string { return e.dir + "/" + name + ".pt" }

// Lookup implements replay.Engine.
func (e *localDisk) Lookup(b replay.Block) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := chunk(b)
	in := e.mu.index[name]
	if in == nil {
		return false
	}
	in.pins++
	i := slices.Index(e.mu.order, name)
	e.mu.order = append(slices.Delete(e.mu.order, i, i+1), name)
	return true
}

// Load implements replay.Engine. No error is a miss: KeyError.
func (e *localDisk) Load(b replay.Block, p []byte) error {
	e.workers <- struct{}{}
	defer func() { <-e.workers }()
	err := e.read(e.path(chunk(b)), p)
	e.mu.Lock()
	defer e.mu.Unlock()
	if in := e.mu.index[chunk(b)]; in != nil {
		in.pins--
	}
	return err
}

func (e *localDisk) read(path string, p []byte) error {
	flags := unix.O_RDONLY
	if e.direct {
		flags |= unix.O_DIRECT
	}
	f, err := replay.Open(path, flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Size(); err != nil {
		return err
	}
	if !e.direct {
		f.Terminal()
		f.Seek(0, unix.SEEK_CUR)
	}
	return f.Read(p)
}

// Store implements replay.Engine: its own eviction first, then the file in place.
func (e *localDisk) Store(b replay.Block, p []byte) error {
	e.workers <- struct{}{}
	defer func() { <-e.workers }()
	name := chunk(b)
	fits, err := e.makeRoom(name, int64(len(p)))
	if err != nil || !fits {
		return err
	}
	err = e.write(e.path(name), p)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.mu.used -= int64(len(p))
		return err
	}
	e.mu.index[name] = &entry{size: int64(len(p))}
	e.mu.order = append(e.mu.order, name)
	return nil
}

// makeRoom removes the least recently used files, but not files that a thread is
// about to load, and reserves n bytes. It reports whether there are that many,
// and not already a file.
func (e *localDisk) makeRoom(name string, n int64) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.index[name] != nil {
		return false, nil
	}
	for i := 0; e.mu.used+n > e.max && i < len(e.mu.order); {
		victim := e.mu.order[i]
		in := e.mu.index[victim]
		if in.pins > 0 {
			i++
			continue
		}
		if err := replay.Unlink(e.path(victim)); err != nil {
			return false, fmt.Errorf("evict: %w", err)
		}
		e.mu.order = slices.Delete(e.mu.order, i, i+1)
		delete(e.mu.index, victim)
		e.mu.used -= in.size
	}
	if e.mu.used+n > e.max {
		return false, nil
	}
	e.mu.used += n
	return true, nil
}

func (e *localDisk) write(path string, p []byte) error {
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
	if e.direct {
		flags = unix.O_CREAT | unix.O_WRONLY | unix.O_DIRECT
	}
	f, err := replay.Open(path, flags, 0o666)
	if err != nil {
		return err
	}
	if !e.direct {
		f.Size()
		f.Terminal()
		f.Seek(0, unix.SEEK_CUR)
	}
	return errors.Join(f.Write(p), f.Close())
}
