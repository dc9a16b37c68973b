package publish

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

// Each line begins with one of these, and its number.
const (
	linePrefix = `{"seq": `
	gapPrefix  = `{"event": "gap", "seq": `
)

// shown reports whether events of this kind have lines. Changes of attributes, and events of
// directories except a rename, matter only to other nodes.
func shown(k event.Kind) bool {
	switch k {
	case event.Stored, event.Evicted, event.Removed, event.Renamed, event.DirRenamed:
		return true
	}
	return false
}

// lineBound is at least the length of ev's line: six bytes for each byte of a name, and the other
// parts.
func lineBound(ev *event.Event) int {
	names := len(ev.Tier) + len(ev.Reason.String()) + len(ev.Key.Group) + len(ev.Key.Hash) + len(ev.From.Group) + len(ev.From.Hash)
	return 256 + 6*names
}

// appendLine appends ev as a line of JSON.
func appendLine(dst []byte, ev *event.Event) []byte {
	dst = append(dst, linePrefix...)
	dst = strconv.AppendUint(dst, ev.Seq, 10)
	dst = append(dst, `, "time": `...)
	dst = strconv.AppendInt(dst, ev.Time.Unix(), 10)
	dst = append(dst, '.')
	us := ev.Time.Nanosecond() / 1000
	for d := 100_000; d > 0; d /= 10 {
		dst = append(dst, '0'+byte(us/d%10))
	}
	dst = append(dst, `, "event": "`...)
	dst = append(dst, ev.Kind.String()...)
	dst = append(dst, '"')
	if ev.Tier != "" {
		dst = append(dst, `, "tier": `...)
		dst = appendString(dst, ev.Tier)
	}
	dst = append(dst, `, "group": `...)
	dst = appendString(dst, string(ev.Key.Group))
	dst = append(dst, `, "hash": `...)
	dst = appendString(dst, string(ev.Key.Hash))
	dst = append(dst, `, "size": `...)
	dst = strconv.AppendInt(dst, ev.Size, 10)
	if ev.Reason != 0 {
		dst = append(dst, `, "reason": `...)
		dst = appendString(dst, ev.Reason.String())
	}
	if ev.From != (block.Key{}) {
		dst = append(dst, `, "from": "`...)
		if ev.From.Group != "" {
			dst = appendEscaped(dst, string(ev.From.Group))
			dst = append(dst, '/')
		}
		dst = appendEscaped(dst, string(ev.From.Hash))
		dst = append(dst, '"')
	}
	if ev.Kind == event.DirRenamed {
		dst = append(dst, `, "directory": true`...)
	}
	return append(dst, "}\n"...)
}

// appendGap appends the line for lost events.
func appendGap(dst []byte, next, missed uint64) []byte {
	dst = append(dst, gapPrefix...)
	dst = strconv.AppendUint(dst, next, 10)
	dst = append(dst, `, "missed": `...)
	dst = strconv.AppendUint(dst, missed, 10)
	return append(dst, "}\n"...)
}

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = appendEscaped(dst, s)
	return append(dst, '"')
}

// appendEscaped appends s as the inside of a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		dst = append(dst, s[start:i]...)
		switch {
		case c >= utf8.RuneSelf:
			dst = append(dst, "\uFFFD"...)
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	return append(dst, s[start:]...)
}

// following returns the number after that of a line: of the next event, or, for a gap, of the event
// that the gap names.
func following(line []byte) uint64 {
	if rest, ok := bytes.CutPrefix(line, []byte(gapPrefix)); ok {
		return leadingUint(rest)
	}
	return leadingUint(line[len(linePrefix):]) + 1
}

func leadingUint(b []byte) (n uint64) {
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + uint64(c-'0')
	}
	return n
}
