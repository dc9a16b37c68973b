package plan

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
)

// Write prints the plan for people.
func (p *Plan) Write(w io.Writer) error {
	out := &bytes.Buffer{}
	p.writeModel(out)
	p.writeLayers(out)
	p.writeSizes(out)
	p.writeGroups(out)
	p.writeLoad(out)
	p.writeSettings(out)
	fmt.Fprintln(out, "\nAssumptions")
	for _, note := range p.Notes {
		fmt.Fprintf(out, "  - %s\n", note)
	}
	_, err := w.Write(out.Bytes())
	return err
}

func (p *Plan) writeModel(w io.Writer) {
	fmt.Fprintf(w, "Model %s: %d layers, keys and values in %s", p.ModelType, p.NumLayers, p.KVDtype)
	if p.StateDtype != "" {
		fmt.Fprintf(w, ", states in %s", p.StateDtype)
	}
	fmt.Fprintf(w, ", %s\n", ranks(p.TP, p.PP))
}

// ranks returns how a model is split.
func ranks(tp, pp int) string {
	if tp*pp == 1 {
		return "one rank"
	}
	return fmt.Sprintf("%d ranks (tp %d, pp %d)", tp*pp, tp, pp)
}

// table returns a writer of columns, and a function that ends it.
func table(w io.Writer, head string) (*tabwriter.Writer, func()) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	return t, func() { _ = t.Flush() } // into memory, which cannot fail
}

func (p *Plan) writeLayers(w io.Writer) {
	fmt.Fprintln(w, "\nLayers, of all ranks")
	t, end := table(w, "  KIND\tLAYERS\tOF EACH\tLOOKS BACK\tBYTES A TOKEN\tBYTES A STATE")
	for _, l := range p.Layers {
		each, back := "", "all"
		switch {
		case l.State != "":
			each, back = l.State, "state"
		case l.Latent > 0:
			each = fmt.Sprintf("latent row of %d", l.Latent)
		default:
			each = fmt.Sprintf("%d key/value heads of %d", l.KVHeads, l.HeadDim)
		}
		if l.Window > 0 {
			back = fmt.Sprintf("%d tokens", l.Window)
		}
		if l.Chunk > 0 {
			back = fmt.Sprintf("chunk of %d", l.Chunk)
		}
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\t%s\n", l.Kind, l.Layers, each, back, orDash(l.TokenBytes), orDash(l.StateBytes))
	}
	end()
}

func orDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func (p *Plan) writeSizes(w io.Writer) {
	fmt.Fprintln(w, "\nBytes")
	t, end := table(w, "  OF\tALL RANKS\t\tTHE LARGEST RANK")
	row := func(name string, b Bytes) {
		fmt.Fprintf(t, "  %s\t%d\t%s\t%d\t%s\n", name, b.Whole, human(float64(b.Whole)), b.Rank, human(float64(b.Rank)))
	}
	row("a token", p.Token)
	if p.BeyondToken != p.Token {
		row("a token beyond windows", p.BeyondToken)
	}
	if p.State != nil {
		row("a state", *p.State)
	}
	if p.Block != nil {
		row(fmt.Sprintf("a block of %d tokens", p.BlockTokens), *p.Block)
	}
	row(fmt.Sprintf("a request of %d tokens", p.Context), p.Request)
	end()
}

func (p *Plan) writeGroups(w io.Writer) {
	name := p.Engine
	if name == "" {
		name = "no engine in particular"
	}
	fmt.Fprintf(w, "\nFiles of %s\n", name)
	t, end := table(w, "  GROUP\tKIND\tLAYERS\tTOKENS\tBYTES OF A FILE\t\tFILES OF A BLOCK")
	for _, g := range p.Groups {
		tokens := fmt.Sprint(g.BlockTokens)
		if g.BlockTokens == 0 {
			tokens = "a request"
		}
		group := g.Name
		if group == "" {
			group = "-"
		}
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%d\t%s\t%d\n", group, g.Kind, g.Layers, tokens, g.FileBytes, human(float64(g.FileBytes)), g.Files)
	}
	end()
}

func (p *Plan) writeLoad(w io.Writer) {
	fmt.Fprintln(w, "\nWorkload")
	if len(p.Load) == 0 {
		fmt.Fprintln(w, "  none given: with --requests-per-second, --mean-prompt and --concurrency the sizes of the tiers follow")
		return
	}
	for _, s := range p.Load {
		fmt.Fprintf(w, "  %-26s %s\n%30s%s\n", s.Name, s.amount(), "", s.How)
	}
}

// amount returns the figure for people.
func (s *Step) amount() string {
	switch s.Unit {
	case "B":
		return human(s.Value)
	case "B/s":
		return human(s.Value) + "/s"
	case "B/day":
		return human(s.Value) + "/day"
	case "requests/s":
		return fmt.Sprintf("%.3g %s", s.Value, s.Unit)
	}
	return fmt.Sprintf("%.0f %s", s.Value, s.Unit)
}

// human returns a number of bytes with three or four digits.
func human(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for bytes >= 1024 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	text := fmt.Sprintf("%.1f", bytes)
	return strings.TrimSuffix(text, ".0") + " " + units[i]
}

func (p *Plan) writeSettings(w io.Writer) {
	fmt.Fprintln(w, "\nSettings")
	for line := range strings.Lines(p.YAML()) {
		fmt.Fprint(w, "  ", line)
	}
	if p.Settings.MemoryAlone != "" {
		fmt.Fprintf(w, "Without an SSD tier: memory.size %s, and no disk.\n", p.Settings.MemoryAlone)
	}
}

// YAML returns the settings in the form of the configuration file.
func (p *Plan) YAML() string {
	var b strings.Builder
	st := &p.Settings
	if st.MemorySize != "" {
		fmt.Fprintf(&b, "memory:\n  size: %s\n", st.MemorySize)
	}
	if st.DiskSize != "" {
		fmt.Fprintf(&b, "disk:\n  dirs:\n    - path: /mnt/nvme0/kvfs  # divide the size among the directories, one a device\n      size: %s\n", st.DiskSize)
	}
	fmt.Fprintf(&b, "staging:\n  size: %s\n", st.StagingSize)
	if st.Group != "" {
		fmt.Fprintf(&b, "groups:\n  %s:  # the first directory below the mount, as it is called there\n    block_size: %s\n", st.Group, st.BlockSize)
	}
	if p.Spec != nil {
		fmt.Fprintf(&b, "specs:\n  %s:\n", p.ModelType)
		fmt.Fprintf(&b, "    hash_block_size: %d\n    scheduler_block_size: %d\n    cache_block_size: %d\n    groups:\n",
			p.Spec.HashBlockSize, p.Spec.SchedulerBlockSize, p.Spec.CacheBlockSize)
		for _, g := range p.Spec.Groups {
			text, _ := json.Marshal(g, json.OmitZeroStructFields(true)) // of strings and numbers, which cannot fail
			fmt.Fprintf(&b, "      - %s\n", text)
		}
	}
	return b.String()
}
