package disk

import (
	"context"

	"github.com/kvfs/kvfs/tiers/disk/recovery"
)

// ErrBusy: another process has the directory open. The error is a *recovery.BusyError.
var ErrBusy = recovery.ErrBusy

// CheckOptions says what Check does; see package recovery.
type CheckOptions = recovery.CheckOptions

// Report is what Check found; see package recovery.
type Report = recovery.Report

// Finding is one result of Check; see package recovery.
type Finding = recovery.Finding

// SeverityError is the Severity of a Finding that is damage.
const SeverityError = recovery.SeverityError

// Check looks for damage in a directory that no process uses, and repairs it on demand; see
// recovery.Check.
func Check(ctx context.Context, dir string, o CheckOptions) (*Report, error) {
	return recovery.Check(ctx, dir, o)
}
