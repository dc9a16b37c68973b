package nixl

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// pool is LMCache's NIXL back-end: files that are made at the start and are open
// for the life of the process. What is in which only the process knows.
type pool struct {
	files []replay.File

	mu struct {
		sync.Mutex
		index map[string]*slot // by the name of the block
		order []string         // the least recently used first
		free  []int            // files that hold nothing
	}
}

type slot struct {
	file int
	pins int // requests that have looked it up and not loaded it yet
}

// startPool returns a maker of pools of n files.
func startPool(n int) replay.Maker {
	return func(dir string) (func(int) replay.Engine, error) {
		if err := replay.MakeDirs(dir); err != nil {
			return nil, err
		}
		p := &pool{}
		p.mu.index = map[string]*slot{}
		for i := range n {
			name := fmt.Sprintf("%s/obj_%d_%04x.bin", dir, i, rand.Uint32()&0xffff)
			f, err := replay.Open(name, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o644)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, f)
			p.mu.free = append(p.mu.free, i)
		}
		return func(int) replay.Engine { return &poolWorker{pool: p} }, nil
	}
}

// poolWorker is one worker that uses the pool.
type poolWorker struct {
	*pool
	aio queue
}

// Lookup implements replay.Engine.
func (p *pool) Lookup(b replay.Block) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.index[b.Name()]
	if s == nil {
		return false
	}
	s.pins++
	i := slices.Index(p.mu.order, b.Name())
	p.mu.order = append(slices.Delete(p.mu.order, i, i+1), b.Name())
	return true
}

// Load implements replay.Engine. No error is a miss.
func (p *poolWorker) Load(b replay.Block, buf []byte) error {
	p.mu.Lock()
	s := p.mu.index[b.Name()]
	p.mu.Unlock()
	err := p.aio.do(split(p.files[s.file], false, buf))
	p.mu.Lock()
	defer p.mu.Unlock()
	s.pins--
	return err
}

// Store implements replay.Engine, in a file that holds nothing, or else the least
// recently used block.
func (p *poolWorker) Store(b replay.Block, buf []byte) error {
	file, ok := p.take(b.Name())
	if !ok {
		return nil
	}
	err := p.aio.do(split(p.files[file], true, buf))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.mu.free = append(p.mu.free, file)
		return err
	}
	p.mu.index[b.Name()] = &slot{file: file}
	p.mu.order = append(p.mu.order, b.Name())
	return nil
}

func (p *pool) take(name string) (file int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.index[name] != nil {
		return 0, false
	}
	if n := len(p.mu.free); n > 0 {
		file = p.mu.free[n-1]
		p.mu.free = p.mu.free[:n-1]
		return file, true
	}
	for i, victim := range p.mu.order {
		if s := p.mu.index[victim]; s.pins == 0 {
			p.mu.order = slices.Delete(p.mu.order, i, i+1)
			delete(p.mu.index, victim)
			return s.file, true
		}
	}
	return 0, false
}

// queue is the AIO context of a worker, made when it is first used.
type queue struct {
	ctx  replay.AIO
	made bool
}

func (q *queue) do(transfers []replay.Transfer) (err error) {
	if !q.made {
		if q.ctx, err = replay.NewAIO(); err != nil {
			return err
		}
		q.made = true
	}
	return q.ctx.Do(transfers)
}

// piece is what one descriptor of a transfer covers.
const piece = 128 << 10

// split makes the transfers of a whole file, as NIXL gets them: one for each
// layer.
func split(f replay.File, write bool, p []byte) []replay.Transfer {
	var all []replay.Transfer
	for off := 0; off < len(p); off += piece {
		all = append(all, replay.Transfer{File: f, Write: write, Off: int64(off), P: p[off:min(len(p), off+piece)]})
	}
	return all
}
