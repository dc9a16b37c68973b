package bench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Report is the result of a run.
type Report struct {
	Mount   string   `json:"mount"`
	Bytes   int64    `json:"bytes"`   // of the blocks of one size
	Targets []string `json:"targets"` // kvfs first
	Without []string `json:"without,omitempty"`
	Busy    float64  `json:"busy"` // share of the CPUs that others used before the run
	Rows    []Row    `json:"rows"`
}

// Row is one operation, with blocks of one size and some threads.
type Row struct {
	Operation  string             `json:"operation"`
	BlockBytes int                `json:"block_bytes,omitempty"` // 0: the size does not matter
	Threads    int                `json:"threads"`
	Unit       string             `json:"unit"`
	Figures    map[string]float64 `json:"figures"` // by target
	Ratio      float64            `json:"ratio"`   // kvfs to tmpfs
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "OPERATION\tBLOCK\tTHREADS")
	for _, name := range r.Targets {
		fmt.Fprintf(t, "\t%s", name)
	}
	fmt.Fprintln(t, "\tUNIT\tOF TMPFS")
	for _, row := range r.Rows {
		block := "-"
		if row.BlockBytes > 0 {
			block = show.Bytes(int64(row.BlockBytes))
		}
		fmt.Fprintf(t, "%s\t%s\t%d", row.Operation, block, row.Threads)
		for _, name := range r.Targets {
			digits := 2
			if row.Figures[name] >= 1000 {
				digits = 0
			}
			fmt.Fprintf(t, "\t%.*f", digits, row.Figures[name])
		}
		fmt.Fprintf(t, "\t%s\t%.0f%%\n", row.Unit, row.Ratio*100)
	}
	return t.Flush()
}
