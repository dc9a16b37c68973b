package mount

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// Random sequences in two mixes. What a sequence does follows from its seed
// alone.

// differMix is a kind of sequences.
type differMix struct {
	name  string
	files []string // names of files
	dirs  []string // names of directories
	start func(*differGen)
	fixed int // how many steps of start no sequence can do without
	step  func(*differGen)
	steps int
}

var differMixes = []differMix{
	{
		name:  "whole", // whole commits only
		files: []string{"a", "b", "c.bin", "s/a", "s/b", "d/a"},
		dirs:  []string{"s", "d"},
		start: func(g *differGen) {
			g.one(differOp{Do: "mkdir", A: "s", Mode: 0o755})
			g.put(0, "a", unix.O_TRUNC)
		},
		step:  (*differGen).wholeStep,
		steps: 30,
	},
	{
		name:  "place", // in place only
		files: []string{"a", "b", "l.lock"},
		start: func(g *differGen) {
			for _, name := range g.mix.files {
				g.add(differOp{Do: "open", A: name, Flags: unix.O_WRONLY | unix.O_CREAT, Mode: g.mode()},
					differOp{Do: "write", N: g.size(), Seed: g.rnd.Uint64()}, differOp{Do: "close"})
			}
		},
		fixed: 3,
		step:  (*differGen).placeStep,
		steps: 50,
	},
}

// differGen makes one sequence.
type differGen struct {
	rnd   *rand.Rand
	mix   *differMix
	evict bool
	steps []differStep
	// open has what the sequence holds open as far as it can tell: some opens
	// may fail.
	open, mapped [differWorkers][differSlots]bool
	flocked      [differWorkers]bool
}

// differSequence returns the sequence of a seed: the last steps close all.
func differSequence(mix *differMix, seed uint64, evict bool) []differStep {
	g := &differGen{rnd: rand.New(rand.NewPCG(seed, 13)), mix: mix, evict: evict}
	mix.start(g)
	for range mix.steps/2 + g.rnd.IntN(mix.steps) {
		mix.step(g)
	}
	return g.steps
}

// differCloseAll closes every descriptor and every mapping.
func differCloseAll() (steps []differStep) {
	for p := range differWorkers {
		for s := range differSlots {
			steps = append(steps, differStep{{P: p, Do: "munmap", T: s}}, differStep{{P: p, Do: "close", S: s}})
		}
	}
	return steps
}

// differWalk looks at everything.
func differWalk(mix *differMix, p int) (steps []differStep) {
	steps = append(steps, differStep{{P: p, Do: "list", A: "."}})
	for _, name := range mix.dirs {
		steps = append(steps, differStep{{P: p, Do: "stat", A: name}}, differStep{{P: p, Do: "list", A: name}})
	}
	for _, name := range mix.files {
		steps = append(steps, differStep{{P: p, Do: "stat", A: name}}, differStep{{P: p, Do: "readfile", A: name}})
	}
	return steps
}

func (g *differGen) add(ops ...differOp) { g.steps = append(g.steps, ops) }

func (g *differGen) one(op differOp) { g.add(op) }

func (g *differGen) file() string { return g.mix.files[g.rnd.IntN(len(g.mix.files))] }
func (g *differGen) dir() string  { return g.mix.dirs[g.rnd.IntN(len(g.mix.dirs))] }

// size returns a number of bytes to write, seldom many.
func (g *differGen) size() int64 {
	switch g.rnd.IntN(8) {
	case 0:
		return 4096
	case 1:
		return 1 + g.rnd.Int64N(9000)
	case 2:
		return 1
	}
	return 1 + g.rnd.Int64N(200)
}

// place returns an offset, mostly within what files have.
func (g *differGen) place() int64 {
	switch g.rnd.IntN(6) {
	case 0:
		return 4096
	case 1:
		return g.rnd.Int64N(10000)
	case 2, 3:
		return 0
	}
	return g.rnd.Int64N(300)
}

func (g *differGen) flag(flag int, percent int) int {
	if g.rnd.IntN(100) < percent {
		return flag
	}
	return 0
}

func (g *differGen) mode() uint32 { return []uint32{0o600, 0o644, 0o640, 0o666}[g.rnd.IntN(4)] }

// writes returns operations that write a whole file from slot s.
func (g *differGen) writes(p, s int) (ops []differOp) {
	for range g.rnd.IntN(4) {
		ops = append(ops, differOp{P: p, Do: "write", S: s, N: g.size(), Seed: g.rnd.Uint64()})
	}
	if g.rnd.IntN(6) == 0 {
		ops = append(ops, differOp{P: p, Do: "fsync", S: s})
	}
	return ops
}

// put writes a file whole, with at least one byte, and closes it.
func (g *differGen) put(p int, name string, flags int) {
	ops := []differOp{
		{P: p, Do: "open", S: 0, A: name, Flags: unix.O_WRONLY | unix.O_CREAT | flags, Mode: g.mode()},
		{P: p, Do: "write", S: 0, N: g.size(), Seed: g.rnd.Uint64()},
	}
	g.add(append(append(ops, g.writes(p, 0)...), differOp{P: p, Do: "close", S: 0})...)
}

// wholeStep is what "whole commits only" is made of: nothing stays open.
func (g *differGen) wholeStep() {
	p, name := g.rnd.IntN(differWorkers), g.file()
	switch n := g.rnd.IntN(100); {
	case n < 15: // temp + rename
		tmp := name + []string{".tmp", fmt.Sprintf(".tmp.%d", p), fmt.Sprintf(".%d.tmp", p)}[g.rnd.IntN(3)]
		ops := []differOp{{P: p, Do: "open", A: tmp, Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC, Mode: g.mode()}}
		ops = append(ops, g.writes(p, 0)...)
		done, move := differOp{P: p, Do: "close"}, differOp{P: p, Do: "rename", A: tmp, B: name}
		if g.rnd.IntN(3) == 0 {
			done, move = move, done
		}
		g.add(append(ops, done, move)...)
	case n < 30:
		g.put(p, name, unix.O_TRUNC)
	case n < 35: // may be left empty
		ops := []differOp{{P: p, Do: "open", A: name, Flags: unix.O_RDWR | unix.O_CREAT | g.flag(unix.O_TRUNC, 50) | g.flag(unix.O_EXCL, 30), Mode: g.mode()}}
		g.add(append(append(ops, g.writes(p, 0)...), differOp{P: p, Do: "close"})...)
	case n < 42:
		g.add(differOp{P: p, Do: "open", A: name, Flags: unix.O_WRONLY | unix.O_APPEND | g.flag(unix.O_CREAT, 50), Mode: g.mode()},
			differOp{P: p, Do: "write", N: g.size(), Seed: g.rnd.Uint64()},
			differOp{P: p, Do: "close"})
	case n < 48:
		g.add(differOp{P: p, Do: "open", A: name, Flags: unix.O_RDWR},
			differOp{P: p, Do: "pwrite", Off: g.place(), N: g.size(), Seed: g.rnd.Uint64()},
			differOp{P: p, Do: "mwrite", Off: g.place(), N: g.size(), Seed: g.rnd.Uint64()},
			differOp{P: p, Do: "close"})
	default:
		g.pathStep(p, name)
	}
}

// pathStep is an operation on names.
func (g *differGen) pathStep(p int, name string) {
	switch n := g.rnd.IntN(100); {
	case n < 25:
		g.one(differOp{P: p, Do: "readfile", A: name})
	case n < 35:
		g.one(differOp{P: p, Do: "stat", A: name})
	case n < 41:
		g.one(differOp{P: p, Do: "list", A: []string{".", g.dir()}[g.rnd.IntN(2)]})
	case n < 53:
		g.one(differOp{P: p, Do: "rename", A: name, B: g.file()})
	case n < 61:
		g.one(differOp{P: p, Do: "unlink", A: name})
	case n < 65:
		g.one(differOp{P: p, Do: "mkdir", A: g.dir(), Mode: []uint32{0o755, 0o700}[g.rnd.IntN(2)]})
	case n < 68:
		g.one(differOp{P: p, Do: "rmdir", A: g.dir()})
	case n < 71:
		g.one(differOp{P: p, Do: "rename", A: g.dir(), B: g.dir()})
	case n < 77:
		g.one(differOp{P: p, Do: "chmod", A: name, Mode: g.mode()})
	case n < 82:
		g.one(differOp{P: p, Do: "utimens", A: name, N: 1 + g.rnd.Int64N(1000)})
	case n < 87:
		g.one(differOp{P: p, Do: "truncate", A: name, N: g.place()})
	case n < 89:
		g.kill(p)
	default:
		g.evictAll()
	}
}

func (g *differGen) kill(p int) {
	g.one(differOp{P: p, Do: "kill"})
	g.open[p], g.mapped[p] = [differSlots]bool{}, [differSlots]bool{}
}

func (g *differGen) evictAll() {
	if g.evict {
		g.one(differOp{Do: "evict"})
	}
}

// slot returns a slot of p that is in use, or not; -1 if there is none.
func (g *differGen) slot(slots *[differSlots]bool, used bool) int {
	from := g.rnd.IntN(differSlots)
	for i := range differSlots {
		if s := (from + i) % differSlots; slots[s] == used {
			return s
		}
	}
	return -1
}

// placeStep is what "in place only" is made of: files that exist stay, and have
// at least one byte.
func (g *differGen) placeStep() {
	p := g.rnd.IntN(differWorkers)
	s := g.slot(&g.open[p], true)
	switch n := g.rnd.IntN(100); {
	case s < 0 || n < 12:
		flags := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR}[g.rnd.IntN(4)]
		if flags != unix.O_RDONLY {
			flags |= g.flag(unix.O_APPEND, 30) | g.flag(unix.O_CREAT, 40)
		}
		g.openStep(p, g.file(), flags)
	case n < 18:
		g.one(differOp{P: p, Do: "close", S: s})
		g.open[p][s] = false
	case n < 28:
		g.flock(p, s)
	case n < 36:
		g.one(differOp{P: p, Do: "setlk", S: s, Flags: []int{unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK}[g.rnd.IntN(3)],
			Off: g.rnd.Int64N(20), N: 1 + g.rnd.Int64N(20)})
	case n < 37:
		g.kill(p)
	case n < 41:
		g.one(differOp{P: p, Do: []string{"stat", "readfile"}[g.rnd.IntN(2)], A: g.file()})
	case n < 45:
		g.one(differOp{P: p, Do: "truncate", A: g.file(), N: 1 + g.place()})
	case n < 46 && g.rnd.IntN(10) == 0: // it waits for what is open
		g.evictAll()
	default:
		g.slotStep(p, s)
	}
}

// flock locks a slot, unless the process has mapped a file: under passthrough a mapping does not keep
// the lock of a descriptor that was closed.
func (g *differGen) flock(p, s int) {
	if slices.Contains(g.mapped[p][:], true) {
		return
	}
	g.flocked[p] = true
	g.one(differOp{P: p, Do: "flock", S: s, Flags: []int{unix.LOCK_SH, unix.LOCK_EX, unix.LOCK_UN}[g.rnd.IntN(3)]})
}

func (g *differGen) openStep(p int, name string, flags int) {
	if s := g.slot(&g.open[p], false); s >= 0 {
		g.one(differOp{P: p, Do: "open", S: s, A: name, Flags: flags, Mode: g.mode()})
		g.open[p][s] = true
	}
}

// slotStep is an operation on a descriptor. No file becomes empty.
func (g *differGen) slotStep(p, s int) {
	op := differOp{P: p, S: s}
	switch n := g.rnd.IntN(100); {
	case n < 18:
		op.Do, op.N, op.Seed = "write", g.size(), g.rnd.Uint64()
	case n < 30:
		op.Do, op.N, op.Seed, op.Off = "pwrite", g.size(), g.rnd.Uint64(), g.place()
	case n < 42:
		op.Do, op.N, op.Off = "pread", 4*g.size(), g.place()
	case n < 47:
		op.Do, op.N = "read", 4*g.size()
	case n < 52:
		op.Do, op.Off, op.Flags = "lseek", g.rnd.Int64N(100), g.rnd.IntN(3)
	case n < 58:
		op.Do, op.N = "ftruncate", max(1, g.place())
	case n < 62:
		op.Do, op.N, op.Off, op.Mode = "fallocate", g.size(), g.place(), uint32(g.flag(unix.FALLOC_FL_KEEP_SIZE, 30))
	case n < 70:
		op.Do = "fstat"
	case n < 74:
		op.Do = []string{"fsync", "fdatasync"}[g.rnd.IntN(2)]
	case n < 76:
		op.Do, op.Mode = "fchmod", g.mode()
	case n < 80:
		g.dupStep(p, s)
		return
	case n < 84:
		op.Do, op.Q, op.T = "same", g.rnd.IntN(differWorkers), g.rnd.IntN(differSlots)
	case n < 87:
		op.Do, op.A = "samename", g.file()
	case n < 90:
		op.Do, op.N, op.Off, op.Seed = "mwrite", g.size(), g.place(), g.rnd.Uint64()
	default:
		g.mapStep(p, s)
		return
	}
	g.one(op)
}

func (g *differGen) dupStep(p, s int) {
	if t := g.slot(&g.open[p], false); t >= 0 {
		g.one(differOp{P: p, Do: "dup", S: s, T: t})
		g.open[p][t] = true
	}
}

func (g *differGen) mapStep(p, s int) {
	m := g.slot(&g.mapped[p], true)
	switch n := g.rnd.IntN(10); {
	case g.flocked[p]:
	case m < 0 || n < 3:
		if t := g.slot(&g.mapped[p], false); t >= 0 {
			g.one(differOp{P: p, Do: "mmap", S: s, T: t, Flags: []int{unix.MAP_SHARED, unix.MAP_PRIVATE}[g.rnd.IntN(2)]})
			g.mapped[p][t] = true
		}
	case n < 5:
		g.one(differOp{P: p, Do: "munmap", T: m})
		g.mapped[p][m] = false
	default:
		g.one(differOp{P: p, Do: "mread", T: m, Off: min(g.place(), differMapBytes-1), N: g.size()})
	}
}
