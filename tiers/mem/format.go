package mem

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

const (
	formatName    = "kvfs-memory"
	formatVersion = 1
)

// format is the content of the file kvfs-memory; the package comment draws it.
type format struct {
	id    string
	label string
	uid   int
	attr  string // name of the record attribute; empty if there is none
	next  uint64
}

func (f format) encode() []byte {
	attr := f.attr
	if attr == "" {
		attr = "none"
	}
	label := f.label[:min(len(f.label), maxLabel)]
	s := fmt.Sprintf("%s %d\nid %s\nlabel %s\nuid %d\nxattr %s\nnext %016x\n",
		formatName, formatVersion, f.id, strconv.QuoteToASCII(label), f.uid, attr, f.next)
	return fmt.Appendf([]byte(s), "crc32c %08x\n", crc32.Checksum([]byte(s), castagnoli))
}

// parseFormat is the inverse of encode. It fails with an error that wraps ErrCorrupt and names the
// damage. A wrong version comes before everything else.
func parseFormat(b []byte) (format, error) {
	var f format
	bad := func(what string) (format, error) {
		return format{}, fmt.Errorf("%s: %s: %w", formatName, what, block.ErrCorrupt)
	}
	lines := strings.SplitAfter(string(b), "\n")
	v, ok := strings.CutPrefix(lines[0], formatName+" ")
	if !ok {
		return bad("not that of a store")
	}
	if v != strconv.Itoa(formatVersion)+"\n" {
		return bad(fmt.Sprintf("format version %.20q, not %d", strings.TrimSpace(v), formatVersion))
	}
	if len(lines) != 8 || lines[7] != "" {
		return bad("damaged: number of lines")
	}
	sum := crc32.Checksum([]byte(strings.Join(lines[:6], "")), castagnoli)
	if lines[6] != fmt.Sprintf("crc32c %08x\n", sum) {
		return bad("damaged: crc")
	}
	var val [6]string
	for i, key := range []string{1: "id ", 2: "label ", 3: "uid ", 4: "xattr ", 5: "next "} {
		if val[i], ok = strings.CutPrefix(lines[i], key); i > 0 && !ok {
			return bad("damaged: no line " + key)
		}
		val[i] = strings.TrimSuffix(val[i], "\n")
	}
	f.id = val[1]
	var errLabel, errUID, errNext error
	f.label, errLabel = strconv.Unquote(val[2])
	f.uid, errUID = strconv.Atoi(val[3])
	f.next, errNext = strconv.ParseUint(val[5], 16, 64)
	if val[4] != "none" {
		f.attr = val[4]
	}
	if errLabel != nil || errUID != nil || errNext != nil || string(f.encode()) != string(b) {
		return bad("damaged: a value")
	}
	return f, nil
}
