package object

import (
	"fmt"
	"strings"
)

// Finding is one thing that Check found.
type Finding struct {
	Object   string `json:"object"`        // its name below the prefix
	Path     string `json:"key,omitempty"` // of the block, if it is about one
	What     string `json:"what"`
	Damage   bool   `json:"damage"`   // false: the object is not one of kvfs, or could not be read
	Repaired bool   `json:"repaired"` // the object was deleted
}

// String returns one line for people.
func (f *Finding) String() string {
	var b strings.Builder
	b.WriteString(map[bool]string{true: "error: ", false: "note: "}[f.Damage] + f.Object)
	if f.Path != "" {
		fmt.Fprintf(&b, " block %q", f.Path)
	}
	b.WriteString(": " + f.What)
	if f.Repaired {
		b.WriteString(" (deleted)")
	}
	return b.String()
}

const (
	// maxFindings bounds Report.Findings. The counts continue beyond it.
	maxFindings = 1000
	// maxForeign is how many objects that are not of kvfs are named.
	maxForeign = 10
)

// Report is what Check found.
type Report struct {
	Objects     int64 `json:"objects"` // of kvfs
	Bytes       int64 `json:"bytes"`   // of these
	Blocks      int64 `json:"blocks"`  // good, as far as they were checked. Versions and copies of a block count each.
	BlockBytes  int64 `json:"block_bytes"`
	Removals    int64 `json:"removals"` // in tombstones that are good
	DataChecked bool  `json:"data_checked"`

	Damaged  int64     `json:"damaged"`  // objects, of which
	Repaired int64     `json:"repaired"` // were deleted
	Unread   int64     `json:"unread"`   // objects that could not be read, or are of a later version
	Foreign  int64     `json:"foreign"`  // objects that are not of kvfs
	Findings []Finding `json:"findings"` // the first 1000, with at most 10 foreign objects
	Omitted  int64     `json:"findings_omitted"`
}

// ExitCode is that of fsck(8): 0 no errors, 1 all errors were repaired, 4 errors are left.
func (r *Report) ExitCode() int {
	switch {
	case r.Damaged > r.Repaired:
		return 4
	case r.Damaged > 0:
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
		data = "data read"
	}
	fmt.Fprintf(&b, "%d objects of %d bytes, %s: %d good blocks of %d bytes, %d removals, %d foreign objects; ",
		r.Objects, r.Bytes, data, r.Blocks, r.BlockBytes, r.Removals, r.Foreign)
	if r.Unread > 0 {
		fmt.Fprintf(&b, "%d not checked; ", r.Unread)
	}
	switch {
	case r.Damaged == 0:
		b.WriteString("no errors\n")
	case r.Damaged == r.Repaired:
		fmt.Fprintf(&b, "%d damaged, all deleted\n", r.Damaged)
	default:
		fmt.Fprintf(&b, "%d damaged, %d deleted\n", r.Damaged, r.Repaired)
	}
	return b.String()
}

// add keeps findings if there is room.
func (r *Report) add(list ...Finding) {
	n := min(len(list), maxFindings-len(r.Findings))
	r.Findings = append(r.Findings, list[:n]...)
	r.Omitted += int64(len(list) - n)
}
