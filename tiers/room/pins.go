package room

import "github.com/kvfs/kvfs/tiers/invariant"

// pins are the bytes of the files of a group or an account that users have pinned, in memory or in lower tiers.
type pins struct {
	bytes int64 // INVARIANT: at least 0
	quota int64 // 0: none
}

func (p *pins) add(n int64) {
	p.bytes += n
	invariant.Check(p.bytes >= 0, "%d bytes that users have pinned", p.bytes)
}

func (p *pins) over(n int64) bool { return p.quota > 0 && p.bytes+n > p.quota }

// Pins returns the bytes of the group's files that users have pinned, and how many these may be; 0: any number.
func (g *Group) Pins() (bytes, quota int64) { return g.pins.bytes, g.pins.quota }

// Pins returns the bytes of the holder's files that users have pinned, and how many these may be; 0: any number.
func (a *Account) Pins() (bytes, quota int64) { return a.pins.bytes, a.pins.quota }

// SetPinQuota sets how many bytes of the group's files users may pin from now on; 0: any number.
func (g *Group) SetPinQuota(quota int64) { g.pins.quota = quota }

// OverPins reports whether n bytes more that users pin are more than one of those who pay may have.
func (b Bill) OverPins(n int64) bool {
	over := b.Group.pins.over(n)
	for _, a := range b.accounts {
		over = over || a != nil && a.pins.over(n)
	}
	return over
}

// AddPins adds n bytes to what users have pinned of the files of those who pay; n may be negative.
func (b Bill) AddPins(n int64) {
	b.Group.pins.add(n)
	for _, a := range b.accounts {
		if a != nil {
			a.pins.add(n)
		}
	}
}
