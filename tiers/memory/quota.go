package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// QuotaKind says whose memory a quota bounds.
type QuotaKind string

// The kinds of quotas.
const (
	QuotaGroup  QuotaKind = "group"  // the blocks of a group
	QuotaUser   QuotaKind = "user"   // the files that a user owns
	QuotaCgroup QuotaKind = "cgroup" // the versions that processes of a control group, or of those below it, have made
)

// Quota is the most memory that the files of a group, a user or a control group may take, or the most bytes of them that
// users may pin.
type Quota struct {
	Kind   QuotaKind `json:"kind"`
	Name   string    `json:"name"`  // of the group; the number of the user; the path of the control group
	Bytes  int64     `json:"bytes"` // 0: no quota
	Pinned bool      `json:"-"`     // it is of what users pin, in memory or in lower tiers
}

// QuotaStats is what a group, a user or a control group may have, and has.
type QuotaStats struct {
	Quota         // of memory
	UsedBytes     int64
	PinQuotaBytes int64 // 0: none
	PinnedBytes   int64 // by users
	Configured    bool  // Bytes is that of the configuration; else SetQuota has set it
}

var errNoQuota = errors.New("has no quota")

const (
	// quotaBatch bounds the entries that one hold of the lock looks at when a quota changes.
	quotaBatch = 4096
	// maxQuotaGroups bounds the groups whose quota is not that of the configuration.
	maxQuotaGroups = 64
	maxCgroupPath  = 1024 // bytes
)

// Accounts are what groups, users and control groups hold and may hold. Its methods may be called in parallel.
type Accounts struct{ e *Memory }

// Accounts returns the accounts.
func (mem *Memory) Accounts() Accounts { return Accounts{mem} }

// SetQuota sets a quota from now on. With 0 bytes it takes the quota away that was set; a group then has that of the
// configuration again. Files that are there count, but for those of a control group: who made them is not known. Then
// SetQuota evicts down to the quota what may go: the least recently used first. Pins stay, whatever their quota is. It
// fails with ErrInvalid, or with ctx's error: then the quota holds, and more than it may be in use.
func (as Accounts) SetQuota(ctx context.Context, q Quota) error {
	e := as.e
	e.quotas.Lock()
	defer e.quotas.Unlock()
	if q.Bytes < 0 {
		return fmt.Errorf("%d bytes: want none, or more: %w", q.Bytes, block.ErrInvalid)
	}
	var err error
	switch q.Kind {
	case QuotaGroup:
		err = e.setGroupQuota(ctx, q)
	case QuotaUser, QuotaCgroup:
		err = e.setHolderQuota(ctx, q)
	default:
		err = fmt.Errorf("kind %q: want group, user or cgroup: %w", block.Shorten(string(q.Kind), block.Shown), block.ErrInvalid)
	}
	return err
}

// setGroupQuota sets the quota of a group.
func (mem *Memory) setGroupQuota(ctx context.Context, q Quota) error {
	if len(q.Name) > block.MaxName || strings.Contains(q.Name, "/") || !utf8.ValidString(q.Name) {
		return fmt.Errorf("group %q: no name of a directory: %w", block.Shorten(q.Name, block.Shown), block.ErrInvalid)
	}
	mem.Mu.Lock()
	n, anew, err := mem.groupQuotaLocked(q)
	var gr *room.Group
	if err == nil {
		gr = mem.Mu.Room.Group(n)
	}
	mem.Mu.Unlock()
	if err != nil {
		return fmt.Errorf("group %q: %w: %w", q.Name, err, block.ErrInvalid)
	}
	if anew {
		mine := func(en *index.Entry) bool { return en.Group() == n && en.Ranked() }
		mem.byAge(mine, func(id index.ID, en *index.Entry) {
			mem.ApplyLocked(catalog.Reranked{ID: id})
		})
		mem.Mu.Lock()
		mem.Mu.Room.Ranked(n)
		mem.Mu.Unlock()
	}
	return mem.evictExcess(ctx, gr, nil)
}

func (mem *Memory) groupQuotaLocked(q Quota) (n uint32, anew bool, err error) {
	gr, changed := mem.Mu.Room.Find(block.GroupID(q.Name)), 0
	for g := range mem.Mu.Room.Groups() {
		if (g.Changed() || pinQuota(g) > 0) && g != gr {
			changed++
		}
	}
	switch {
	case q.Bytes == 0 && (gr == nil || q.Pinned && pinQuota(gr) == 0):
		return 0, false, errNoQuota
	case changed >= maxQuotaGroups && q.Bytes > 0:
		return 0, false, fmt.Errorf("there are %d quotas of groups already", changed)
	}
	if q.Pinned {
		n = mem.Mu.Room.Number(block.GroupID(q.Name))
		mem.Mu.Room.Group(n).SetPinQuota(q.Bytes)
		return n, false, nil
	}
	if err := mem.Mu.Room.CheckQuota(q.Bytes); err != nil {
		return 0, false, err // before the group is made for it
	}
	n = mem.Mu.Room.Number(block.GroupID(q.Name))
	anew, err = mem.Mu.Room.SetQuota(n, q.Bytes)
	return n, anew, err
}

func pinQuota(g *room.Group) int64 {
	_, quota := g.Pins()
	return quota
}

// setHolderQuota sets the quota of a user or a control group.
func (mem *Memory) setHolderQuota(ctx context.Context, q Quota) error {
	h, err := holderOf(q)
	if err != nil {
		return err
	}
	of := catalog.OfUser
	if h.Cgroup != "" {
		of = catalog.OfCgroup
	}
	if q.Bytes == 0 {
		return mem.endAccount(q, h, of)
	}
	mem.Mu.Lock()
	n, fresh, err := mem.Mu.Room.OpenAccount(h, q.Bytes, q.Pinned)
	a := mem.Mu.Room.Account(n)
	mem.Mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %w", q.Kind, q.Name, err, block.ErrInvalid)
	}
	if of == catalog.OfCgroup {
		mem.cgroups.Store(true)
	} else if fresh {
		mine := func(en *index.Entry) bool { return en.UID() == h.UID && en.Accounts()[of] == 0 }
		mem.byAge(mine, func(id index.ID, en *index.Entry) { mem.rebillLocked(id, en, of, n) })
	}
	return mem.evictExcess(ctx, nil, a)
}

func (mem *Memory) endAccount(q Quota, h room.Holder, of int) error {
	mem.Mu.Lock()
	n, had := mem.Mu.Room.EndQuota(h, q.Pinned)
	cgroups := false
	for a := range mem.Mu.Room.Accounts() {
		cgroups = cgroups || a.Holder().Cgroup != ""
	}
	mem.cgroups.Store(cgroups)
	mem.Mu.Unlock()
	switch {
	case !had:
		return fmt.Errorf("%s %s: %w: %w", q.Kind, q.Name, errNoQuota, block.ErrInvalid)
	case n == 0: // the other quota is left
		return nil
	}
	mem.eachFile(func(id index.ID, en *index.Entry) {
		if en.Accounts()[of] == n {
			mem.rebillLocked(id, en, of, 0)
		}
	})
	mem.Mu.Lock()
	mem.Mu.Room.DropAccount(n)
	mem.Mu.Unlock()
	return nil
}

// rebillLocked accounts a file to another account of the kind of.
func (mem *Memory) rebillLocked(id index.ID, en *index.Entry, of int, to uint16) {
	accounts := en.Accounts()
	accounts[of] = to
	mem.ApplyLocked(catalog.Billed{ID: id, Group: en.Group(), Accounts: accounts})
}

// byAge calls fn under the lock, which is let go from time to time, for the files that are mine, the least recently
// used first.
func (mem *Memory) byAge(mine func(en *index.Entry) bool, fn func(id index.ID, en *index.Entry)) {
	type file struct {
		id   index.ID
		used int64
	}
	var files []file
	mem.eachFile(func(id index.ID, en *index.Entry) {
		if mine(en) {
			files = append(files, file{id, max(en.Atime(), en.Ctime())})
		}
	})
	slices.SortStableFunc(files, func(a, b file) int { return cmp.Compare(a.used, b.used) })
	for some := range slices.Chunk(files, quotaBatch) {
		mem.Mu.Lock()
		for _, f := range some {
			if !mem.Mu.Ix.Valid(f.id) {
				continue
			}
			if en := mem.Mu.Ix.At(f.id); en.IsRegular() && mine(en) {
				fn(f.id, en)
			}
		}
		mem.Mu.Unlock()
	}
}

// eachFile calls fn for all files that are there from before the call to its end. fn is called under the lock, which is
// let go from time to time.
func (mem *Memory) eachFile(fn func(id index.ID, en *index.Entry)) {
	for id, end := index.ID(0), index.ID(1); id < end; {
		mem.Mu.Lock()
		end = mem.Mu.Ix.End()
		for stop := min(uint64(id)+quotaBatch, uint64(end)); uint64(id) < stop; id++ {
			if mem.Mu.Ix.Valid(id) {
				if en := mem.Mu.Ix.At(id); en.IsRegular() {
					fn(id, en)
				}
			}
		}
		mem.Mu.Unlock()
	}
}

// evictExcess evicts what a group or an account has above its quota, as far as it may go now.
func (mem *Memory) evictExcess(ctx context.Context, gr *room.Group, a *room.Account) error {
	for freed := int64(1); freed > 0 && ctx.Err() == nil; {
		var g state.Gone
		mem.Mu.Lock()
		freed = 0
		if n, order := mem.Mu.Room.ExcessOf(gr, a); n > 0 && order != nil {
			freed, _ = mem.evictLocked(order, min(n, evictBatch), outcome.ReasonQuota, false, &g)
		}
		mem.Mu.Unlock()
		mem.Finish(&g)
	}
	return ctx.Err()
}

// holderOf reads the name of a user or a control group.
func holderOf(q Quota) (h room.Holder, err error) {
	bad := func(want string) (room.Holder, error) {
		return h, fmt.Errorf("%s %q: want %s: %w", q.Kind, block.Shorten(q.Name, block.Shown), want, block.ErrInvalid)
	}
	if q.Kind == QuotaUser {
		uid, err := strconv.ParseUint(q.Name, 10, 32)
		if err != nil {
			return bad("the number of a user")
		}
		return room.Holder{UID: uint32(uid)}, nil
	}
	if !path.IsAbs(q.Name) || path.Clean(q.Name) != q.Name || len(q.Name) > maxCgroupPath || !utf8.ValidString(q.Name) {
		return bad("an absolute path, as in /proc/PID/cgroup after 0::")
	}
	return room.Holder{Cgroup: q.Name}, nil
}

// NeedCgroups reports whether a caller that may make a version needs Caller.Cgroup.
func (as Accounts) NeedCgroups() bool { return as.e.cgroups.Load() }

// Quotas returns those who have a quota, groups first.
func (as Accounts) Quotas() (list []QuotaStats) {
	e := as.e
	e.Mu.Lock()
	defer e.Mu.Unlock()
	for g := range e.Mu.Room.Groups() {
		pinned, pins := g.Pins()
		if q := g.Options().QuotaBytes; q > 0 || pins > 0 {
			of := Quota{Kind: QuotaGroup, Name: string(g.Name()), Bytes: q}
			list = append(list, QuotaStats{of, g.Used(), pins, pinned, q > 0 && !g.Changed()})
		}
	}
	for a := range e.Mu.Room.Accounts() {
		q := Quota{Kind: QuotaUser, Name: strconv.FormatUint(uint64(a.Holder().UID), 10), Bytes: a.Quota()}
		if h := a.Holder(); h.Cgroup != "" {
			q.Kind, q.Name = QuotaCgroup, h.Cgroup
		}
		pinned, pins := a.Pins()
		list = append(list, QuotaStats{q, a.Used(), pins, pinned, false})
	}
	return list
}
