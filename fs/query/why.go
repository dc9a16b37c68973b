package query

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// flushAt is how many bytes of a long answer are gathered before a write.
const flushAt = 64 << 10

// why answers why blocks are not there. It writes verdicts as they come, since those of many blocks
// are long.
func (s *Service) why(ctx context.Context, sc *scratch, answer io.Writer) *strict.Error {
	n := &sc.q.names
	if sc.as != nil { // the remembered names do not say which users could read them
		return strict.Faulty("/op", "why is for root and the user of the daemon")
	}
	if err := sc.q.listed(); err != nil {
		return err
	}
	l, err := n.prepare()
	if err != nil {
		return err
	}
	sc.out = append(sc.out[:0], `{"op": "why", "verdicts": [`...)
	var path []byte
	for i := range n.count {
		if i%batch == 0 && ctx.Err() != nil {
			sc.out = sc.out[:0]
			return nil // a part of the answer may be written, so it has no end
		}
		if i > 0 {
			sc.out = append(sc.out, ", "...)
		}
		var ok bool
		if path, sc.arena, ok = n.appendPath(sc.arena[:0], l, i, 0); !ok {
			path = n.item(i) // too short or too long for a path
		}
		v := s.engine.Why(string(path))
		v.To = n.shown(v.To)
		sc.out = appendVerdict(sc.out, n.shown(string(path)), v, s.now())
		if len(sc.out) < flushAt {
			continue
		}
		if _, err := answer.Write(sc.out); err != nil {
			sc.out = sc.out[:0]
			return nil // the reader is gone
		}
		sc.out = sc.out[:0]
	}
	sc.out = append(sc.out, "]}\n"...)
	return nil
}

func appendVerdict(out []byte, path string, v outcome.Verdict, now time.Time) []byte {
	out = appendText(append(out, `{"path": `...), path)
	out = appendMember(out, "verdict", string(v.Kind))
	out = appendMember(out, "tier", v.Tier)
	out = appendMember(out, "rule", v.Rule)
	out = appendMember(out, "by", v.By)
	out = appendMember(out, "to", v.To)
	if len(v.Groups) > 0 {
		out = append(out, `, "groups": [`...)
		for i, g := range v.Groups {
			if i > 0 {
				out = append(out, ", "...)
			}
			out = appendText(out, g)
		}
		out = append(out, ']')
	}
	if !v.Time.IsZero() {
		out = v.Time.UTC().AppendFormat(append(out, `, "time": "`...), time.RFC3339Nano)
		out = append(out, `", "age_seconds": `...)
		out = strconv.AppendFloat(out, ageOf(v, now).Round(time.Millisecond).Seconds(), 'f', -1, 64)
	}
	out = appendMember(out, "text", VerdictText(v, now))
	return append(out, '}')
}

// VerdictText returns the text of a verdict with its age put in, as of now:
// "evicted from memory 12.5 s ago: memory was full, and no other tier had it".
func VerdictText(v outcome.Verdict, now time.Time) string {
	if v.Time.IsZero() {
		return v.Text
	}
	age := ageText(ageOf(v, now))
	switch v.Kind {
	case outcome.Present, outcome.Pending:
		return v.Text
	case outcome.NeverStored:
		return v.Text + " (things are remembered for " + age + ")"
	}
	end := clauseEnd(v.Text)
	if v.Kind == outcome.Renamed {
		end = len(v.Text) // the text contains a path, with any characters
	}
	return v.Text[:end] + " " + age + " ago" + v.Text[end:]
}

// clauseEnd returns the end of the first part of a sentence. That part says what happened.
func clauseEnd(text string) int {
	for i := 1; i < len(text); i++ {
		if text[i] == ' ' && strings.IndexByte(":;,", text[i-1]) >= 0 {
			return i - 1
		}
	}
	return len(text)
}

// ageOf returns how long ago something happened. The clock may have been set back since then.
func ageOf(v outcome.Verdict, now time.Time) time.Duration { return max(0, now.Sub(v.Time)) }

func ageText(age time.Duration) string {
	switch {
	case age < 100*time.Second:
		return fmt.Sprintf("%.1f s", age.Seconds())
	case age < 100*time.Minute:
		return fmt.Sprintf("%.0f min", age.Minutes())
	case age < 48*time.Hour:
		return fmt.Sprintf("%.1f h", age.Hours())
	}
	return fmt.Sprintf("%.0f days", age.Hours()/24)
}
