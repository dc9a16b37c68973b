package recovery

import (
	"fmt"
	"strings"
	"time"
)

// Severity says how bad a Finding is.
type Severity string

const (
	SeverityError Severity = "error" // damage: it cost a block or speed, or would cost them later
	SeverityNote  Severity = "note"  // worth knowing, costs nothing: for example the traces of a crash
)

// Finding is one result of Check.
type Finding struct {
	Severity Severity `json:"severity"`
	Path     string   `json:"path"`          // of the file
	Offset   int64    `json:"offset"`        // in the file
	Key      string   `json:"key,omitempty"` // of the block, if it is known
	What     string   `json:"what"`
	Repaired bool     `json:"repaired"`
}

// String returns one line for people.
func (f *Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Severity, f.Path)
	if f.Offset > 0 {
		fmt.Fprintf(&b, " at %d", f.Offset)
	}
	if f.Key != "" {
		fmt.Fprintf(&b, " block %q", f.Key)
	}
	fmt.Fprintf(&b, ": %s", f.What)
	if f.Repaired {
		b.WriteString(" (repaired)")
	}
	return b.String()
}

// maxFindings bounds Report.Findings. The counts continue beyond it.
const maxFindings = 1000

// Report is what Check found.
type Report struct {
	Dir   string `json:"dir"`
	UUID  string `json:"uuid"`
	Clean bool   `json:"closed_cleanly"` // before Check

	Slabs        int64 `json:"slabs"` // usable
	Slots        int64 `json:"slots"`
	Blocks       int64 `json:"blocks"` // good, as far as they were checked
	BlockBytes   int64 `json:"block_bytes"`
	DataChecked  bool  `json:"data_checked"`
	DataBytes    int64 `json:"data_bytes_read"`
	TableBytes   int64 `json:"table_bytes_read"`
	IndexEntries int64 `json:"index_entries"`

	Errors   int64     `json:"errors"`   // findings of SeverityError, of which
	Repaired int64     `json:"repaired"` // were repaired
	Notes    int64     `json:"notes"`
	Findings []Finding `json:"findings"` // the first 1000
	Omitted  int64     `json:"findings_omitted"`

	Took time.Duration `json:"took_ns"`
}

// ExitCode is that of fsck(8): 0 no errors, 1 all errors were repaired, 4 errors are left.
func (r *Report) ExitCode() int {
	switch {
	case r.Errors > r.Repaired:
		return 4
	case r.Errors > 0:
		return 1
	}
	return 0
}

// String returns the report for people, with a line for each finding.
func (r *Report) String() string {
	var b strings.Builder
	for i := range r.Findings {
		b.WriteString(r.Findings[i].String() + "\n")
	}
	if r.Omitted > 0 {
		fmt.Fprintf(&b, "... and %d more\n", r.Omitted)
	}
	data := "data not read"
	if r.DataChecked {
		data = fmt.Sprintf("%d bytes of data read", r.DataBytes)
	}
	fmt.Fprintf(&b, "%s: %d blocks of %d bytes in %d slabs, %s; ", r.Dir, r.Blocks, r.BlockBytes, r.Slabs, data)
	switch {
	case r.Errors == 0:
		b.WriteString("no errors\n")
	case r.Errors == r.Repaired:
		fmt.Fprintf(&b, "%d errors, all repaired\n", r.Errors)
	default:
		fmt.Fprintf(&b, "%d errors, %d repaired\n", r.Errors, r.Repaired)
	}
	return b.String()
}

// add counts a finding, and keeps it if there is room.
func (r *Report) add(f Finding) {
	switch {
	case f.Severity == SeverityNote:
		r.Notes++
	case f.Repaired:
		r.Errors++
		r.Repaired++
	default:
		r.Errors++
	}
	if len(r.Findings) == maxFindings {
		r.Omitted++
		return
	}
	r.Findings = append(r.Findings, f)
}
