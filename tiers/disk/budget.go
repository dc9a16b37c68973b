package disk

import "time"

// budget is what was written today. The share of each device is in device.written,
// from where it is saved in the superblock.
type budget struct {
	day      int64 // days since the epoch, UTC
	reserved int64 // bytes, by stores under way
}

// dayOf returns the days since the epoch, UTC.
func dayOf(now time.Time) int64 { return now.Unix() / 86400 }

// initBudget takes over what the superblocks say of today.
func (t *Tier) initBudget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.budget.day = dayOf(t.opts.Now())
	for _, d := range t.devices {
		if sb := d.home.superblock(); sb.day == t.mu.budget.day {
			d.written += sb.dayBytes
		}
	}
}

// rollLocked begins a new day. It needs t.mu.
func (t *Tier) rollLocked() {
	if today := dayOf(t.opts.Now()); today != t.mu.budget.day {
		t.mu.budget.day = today
		for _, d := range t.devices {
			d.written = 0
		}
	}
}

// writtenLocked returns what all devices have written today. It needs t.mu.
func (t *Tier) writtenLocked() (sum int64) {
	t.rollLocked()
	for _, d := range t.devices {
		sum += d.written
	}
	return sum
}

// reserveLocked sets bytes of the write budget aside for a store. False: there are
// not so many left, and the store is not forced. It needs t.mu.
func (t *Tier) reserveLocked(bytes int64, force bool) bool {
	limit := t.opts.DailyWriteBudgetBytes
	if limit > 0 && !force && t.writtenLocked()+t.mu.budget.reserved+bytes > limit {
		return false
	}
	t.mu.budget.reserved += bytes
	return true
}

// spendLocked counts bytes that were written. It needs t.mu.
func (t *Tier) spendLocked(d *device, bytes int64) {
	t.rollLocked()
	d.written += bytes
}

// saveBudget writes down what a device has written today, for a restart.
func (t *Tier) saveBudget(d *device) error {
	t.mu.Lock()
	t.rollLocked()
	day, written := t.mu.budget.day, d.written
	t.mu.Unlock()
	return d.home.setWritten(day, written)
}
