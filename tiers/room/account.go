package room

import (
	"fmt"
	"iter"
	"path"

	"github.com/kvfs/kvfs/tiers/policy"
)

// MaxAccounts bounds the accounts of a Room. The order of each has up to 12 bytes for every block in memory.
const MaxAccounts = 64

// Holder is who has an account: a user, or a control group and those below it.
type Holder struct {
	UID    uint32 // if Cgroup is empty
	Cgroup string // absolute path in the hierarchy of version 2
}

// Account is what the files of one holder use of memory, and what they may use. Only holders with a quota have one.
// The lock of its Room guards it.
type Account struct {
	holder Holder
	quota  int64 // 0: none
	used   int64
	pins   pins
	order  *policy.LRU // of its blocks, which are in the order of their group, too
}

// Holder returns whose account it is.
func (a *Account) Holder() Holder { return a.holder }

// Quota returns the bytes that the holder may use; 0: any number.
func (a *Account) Quota() int64 { return a.quota }

// Used returns the bytes that are charged to the account.
func (a *Account) Used() int64 { return a.used }

// over reports whether n bytes more are more than the holder may use.
func (a *Account) over(n int64) bool { return a != nil && a.quota > 0 && a.used+n > a.quota }

// limit returns the quota of what is used, or of what users pin.
func (a *Account) limit(pinned bool) *int64 {
	if pinned {
		return &a.pins.quota
	}
	return &a.quota
}

// open reports whether the holder has a quota. Else the account is being closed.
func (a *Account) open() bool { return a.quota > 0 || a.pins.quota > 0 }

// OpenAccount gives a holder a quota, and an account if it has none. pinned: the quota is of what users pin. It fails if
// there are MaxAccounts, or if another quota exceeds the capacity; the errors are for the operator and have no kind.
// fresh: the account is new, and the files that the holder has are to be entered.
func (r *Room) OpenAccount(h Holder, quota int64, pinned bool) (n uint16, fresh bool, err error) {
	if err := r.CheckQuota(quota); err != nil && !pinned {
		return 0, false, err
	}
	if n = r.holders[h]; n != 0 {
		*r.accounts[n].limit(pinned) = quota
		return n, false, nil
	}
	for n = 1; int(n) < len(r.accounts) && r.accounts[n] != nil; n++ {
	}
	switch {
	case n > MaxAccounts:
		return 0, false, fmt.Errorf("there are %d quotas of users and cgroups already", MaxAccounts)
	case int(n) == len(r.accounts):
		r.accounts = append(r.accounts, nil)
	}
	r.accounts[n] = &Account{holder: h, order: policy.NewLRU()}
	*r.accounts[n].limit(pinned) = quota
	r.holders[h] = n
	return n, true, nil
}

// EndQuota takes a quota of a holder away, and reports whether there was one. With its last quota the account n ends; 0:
// none does. Files that were charged to it are charged until the user has gone through all of them; then DropAccount
// follows.
func (r *Room) EndQuota(h Holder, pinned bool) (n uint16, had bool) {
	if n = r.holders[h]; n == 0 || *r.accounts[n].limit(pinned) == 0 {
		return 0, false
	}
	*r.accounts[n].limit(pinned) = 0
	if r.accounts[n].open() {
		return 0, true
	}
	delete(r.holders, h)
	return n, true
}

// DropAccount forgets an account to which no entry is charged any more.
func (r *Room) DropAccount(n uint16) { r.accounts[n] = nil }

// Account returns the account of a number, nil for 0.
func (r *Room) Account(n uint16) *Account { return r.accounts[n] }

// Accounts returns the accounts, in the order of their numbers, but for those that end.
func (r *Room) Accounts() iter.Seq[*Account] {
	return func(yield func(*Account) bool) {
		for _, a := range r.accounts {
			if a != nil && a.open() && !yield(a) {
				return
			}
		}
	}
}

// OfUser returns the account of a user, 0 if there is none.
func (r *Room) OfUser(uid uint32) uint16 {
	if len(r.holders) == 0 {
		return 0
	}
	return r.holders[Holder{UID: uid}]
}

// OfCgroup returns the account of a control group: its own, else that of the nearest one above it; 0 if none has one.
func (r *Room) OfCgroup(at string) uint16 {
	for len(r.holders) > 0 && path.IsAbs(at) {
		if n := r.holders[Holder{Cgroup: at}]; n != 0 || at == "/" {
			return n
		}
		at = path.Dir(at)
	}
	return 0
}

// CheckQuota returns why a quota cannot be given. The error is for the operator and has no kind.
func (r *Room) CheckQuota(quota int64) error {
	if quota > r.opts.CapacityBytes {
		return fmt.Errorf("quota %d exceeds the capacity %d", quota, r.opts.CapacityBytes)
	}
	return nil
}

// Bill is who pays for a file.
type Bill struct {
	Group    *Group
	Pinned   bool        // by a user: bytes more count as pinned, too
	accounts [2]*Account // nil: none
}

// Bill returns who pays for a file of a group with these accounts. It holds as long as the numbers do.
func (r *Room) Bill(group uint32, accounts [2]uint16) Bill {
	return Bill{Group: r.groups[group], accounts: [2]*Account{r.accounts[accounts[0]], r.accounts[accounts[1]]}}
}

// Bill returns the bill of a file that no account pays for.
func (g *Group) Bill() Bill { return Bill{Group: g} }

// Over reports whether n bytes more are more than one of those who pay may use.
func (b Bill) Over(n int64) bool {
	return b.Group.Over(n) || b.accounts[0].over(n) || b.accounts[1].over(n) || b.Pinned && n > 0 && b.OverPins(n)
}

// exceeds reports whether a file of n bytes is larger than a quota.
func (b Bill) exceeds(n int64) bool {
	larger := func(q int64) bool { return q > 0 && n > q }
	if larger(b.Group.opts.QuotaBytes) {
		return true
	}
	for _, a := range b.accounts {
		if a != nil && larger(a.quota) {
			return true
		}
	}
	return false
}

// Rank enters a block in the orders of those who pay for it, as policy.Policy does with Add.
func (r *Room) Rank(b Bill, id uint32, hash uint64, size int64) {
	r.orderOf(b.Group).Add(id, hash, size)
	for _, a := range b.accounts {
		if a != nil {
			a.order.Add(id, hash, size)
		}
	}
}

// Unrank forgets a block in the orders of those who pay for it, but for the order that evicts it now; nil: in all.
func (r *Room) Unrank(b Bill, id uint32, but policy.Policy) {
	if p := r.orderOf(b.Group); p != but {
		p.Remove(id)
	}
	if p := b.Group.former; p != nil && p != but {
		p.Remove(id)
	}
	for _, a := range b.accounts {
		if a != nil && policy.Policy(a.order) != but {
			a.order.Remove(id)
		}
	}
}

// Touch marks a block as used in the orders of those who pay for it. The use belongs to a burst; 0: to none.
func (r *Room) Touch(b Bill, id uint32, burst policy.Burst) {
	r.orderOf(b.Group).Touch(id, burst)
	for _, a := range b.accounts {
		if a != nil {
			a.order.Touch(id, burst)
		}
	}
}

// Follow gives a block its place in a burst in the orders of those who pay for it, as policy.Policy says.
func (r *Room) Follow(b Bill, id uint32, burst policy.Burst, came bool) {
	r.orderOf(b.Group).Follow(id, burst, came)
	for _, a := range b.accounts {
		if a != nil {
			a.order.Follow(id, burst, came)
		}
	}
}

// BurstOf returns the burst in which a block took its place, 0 if there is none.
func (r *Room) BurstOf(b Bill, id uint32) policy.Burst { return r.orderOf(b.Group).BurstOf(id) }

// orderOf returns the order in which the blocks of a group are evicted for all that need room.
func (r *Room) orderOf(g *Group) policy.Policy {
	if g.order != nil {
		return g.order
	}
	return r.shared
}

// SetQuota gives a group the quota, 0 for that of the configuration, from now on. It fails if the quota exceeds the
// capacity; the error is for the operator and has no kind. anew: the group's blocks are to be unranked and ranked once,
// as they are in another order than it has now; then Ranked follows.
func (r *Room) SetQuota(n uint32, quota int64) (anew bool, err error) {
	g := r.groups[n]
	if err := r.CheckQuota(quota); err != nil {
		return false, err
	}
	g.changed = quota != 0
	if quota == 0 {
		quota = g.quota
	}
	g.opts.QuotaBytes = quota
	if g.opts.Pinned || (g.order != nil) == (quota > 0) {
		return false, nil
	}
	if g.former = r.orderOf(g); quota == 0 {
		g.order = nil
		return true, nil
	}
	g.order, err = policy.New(r.opts.Policy, quota)
	return true, err
}

// Ranked ends the change of a group's order.
func (r *Room) Ranked(n uint32) { r.groups[n].former = nil }

// ExcessOf returns the bytes that a group or an account has above its quota, and the order in which its blocks are
// evicted; nil: none are.
func (r *Room) ExcessOf(g *Group, a *Account) (n int64, order policy.Policy) {
	if a != nil {
		return excess(a.used, a.quota), a.order
	}
	return excess(g.used, g.opts.QuotaBytes), g.order
}

func excess(used, quota int64) int64 {
	if quota == 0 {
		return 0
	}
	return max(0, used-quota)
}
