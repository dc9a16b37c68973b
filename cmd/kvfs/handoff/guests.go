package handoff

import (
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// guests are the connections of a socket. There is a limit to their number. A new one beyond it takes the place of the
// oldest that has asked nothing: a process asks as soon as it is greeted, so those that ask nothing keep no other out. The
// lock of the socket guards it.
type guests struct {
	most   int                        // in total
	quiet  int                        // of those that have asked nothing
	all    map[*net.UnixConn]struct{} // from addLocked to dropLocked
	silent []*net.UnixConn            // those of all that have asked nothing, the oldest first
}

// newGuests makes room for that many connections. Those that have asked nothing get at most a quarter of the descriptors
// of this process.
func newGuests(most int) guests {
	g := guests{most: most, quiet: most, all: map[*net.UnixConn]struct{}{}}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		g.quiet = int(min(uint64(most), max(limit.Cur/4, maxOffers)))
	}
	return g
}

// addLocked notes a connection. It reports whether it took the place of another, and not ok if there are too many that
// have asked something.
func (g *guests) addLocked(c *net.UnixConn) (cut, ok bool) {
	if len(g.silent) > 0 && (len(g.all) >= g.most || len(g.silent) >= g.quiet) {
		oldest := g.silent[0]
		g.dropLocked(oldest)
		oldest.Close() // its goroutine ends
		cut = true
	}
	if len(g.all) >= g.most {
		return cut, false
	}
	g.all[c] = struct{}{}
	g.silent = append(g.silent, c)
	return cut, true
}

// askedLocked notes that a connection has asked something. It reports false if another has taken its place.
func (g *guests) askedLocked(c *net.UnixConn) bool {
	_, ok := g.all[c]
	g.speakLocked(c)
	return ok
}

func (g *guests) speakLocked(c *net.UnixConn) {
	if at := slices.Index(g.silent, c); at >= 0 {
		g.silent = slices.Delete(g.silent, at, at+1)
	}
}

// dropLocked forgets a connection.
func (g *guests) dropLocked(c *net.UnixConn) {
	delete(g.all, c)
	g.speakLocked(c)
}

// wakeLocked ends all reads.
func (g *guests) wakeLocked() {
	for c := range g.all {
		_ = c.CloseRead() // an ended one needs no waking
	}
}
