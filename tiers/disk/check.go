package disk

import (
	"context"

	"github.com/kvfs/kvfs/tiers/disk/home"
)

// ErrBusy: another process has the directory open. The error is a *home.BusyError.
var ErrBusy = home.ErrBusy

// CheckOptions says what Check does; see package home.
type CheckOptions = home.CheckOptions

// Report is what Check found; see package home.
type Report = home.Report

// Finding is one result of Check; see package home.
type Finding = home.Finding

// SeverityError is the Severity of a Finding that is damage.
const SeverityError = home.SeverityError

// Check looks for damage in a directory that no process uses, and repairs it on demand; see
// home.Check.
func Check(ctx context.Context, dir string, o CheckOptions) (*Report, error) {
	return home.Check(ctx, dir, o)
}
