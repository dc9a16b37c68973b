package disk

import "time"

// budget is what was written today. device.mu.written holds the share of each device, and the
// superblock saves it.
type budget struct {
	day      int64 // days since the epoch, UTC
	reserved int64 // bytes, by stores under way
}

// dayOf returns the days since the epoch, UTC.
func dayOf(now time.Time) int64 { return now.Unix() / 86400 }

// initBudget takes today's written bytes from the superblocks.
func (t *Tier) initBudget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.budget.day = dayOf(t.opts.Now())
	for _, d := range t.devices {
		if sb := d.root.Superblock(); sb.Day == t.mu.budget.day {
			d.mu.written += sb.DayBytes
		}
	}
}

// rollLocked begins a new day. It needs t.mu.
func (t *Tier) rollLocked() {
	if today := dayOf(t.opts.Now()); today != t.mu.budget.day {
		t.mu.budget.day = today
		for _, d := range t.devices {
			d.mu.written = 0
		}
	}
}

// writtenLocked returns what all devices have written today. It needs t.mu.
func (t *Tier) writtenLocked() (sum int64) {
	t.rollLocked()
	for _, d := range t.devices {
		sum += d.mu.written
	}
	return sum
}

// reserveLocked reserves bytes of the write budget for a store. It returns false if too few are
// left and the store is not forced. It needs t.mu.
func (t *Tier) reserveLocked(bytes int64, force bool) bool {
	limit := t.opts.DailyWriteBudgetBytes
	if limit > 0 && !force && t.writtenLocked()+t.mu.budget.reserved+bytes > limit {
		return false
	}
	t.mu.budget.reserved += bytes
	return true
}

// spend counts bytes that were written.
func (t *Tier) spend(d *device, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rollLocked()
	d.mu.written += bytes
}

// saveBudget saves in the superblock what a device has written today.
func (t *Tier) saveBudget(d *device) error {
	t.mu.Lock()
	t.rollLocked()
	day, written := t.mu.budget.day, d.mu.written
	t.mu.Unlock()
	return d.root.SetWritten(day, written)
}
