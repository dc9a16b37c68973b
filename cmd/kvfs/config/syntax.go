package config

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// parserText is how the parser of YAML puts an error. It leaves out the line if that is the first.
var parserText = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// remedies are what to do about errors of the parser, by a part of its text.
var remedies = []struct{ text, remedy string }{
	{"mapping values are not allowed", "a colon too many, or the line is indented deeper than the one above: put a value with a colon in quotes"},
	{"did not find expected ',' or", "a bracket is not closed, or a comma is missing"},
	{"unexpected end of stream", "a quote or a bracket is not closed"},
	{"unknown anchor", "put a value that begins with * in quotes"},
	{"UTF", "the text is not UTF-8: save it as that"},
	{"control characters", "the text has bytes that are not text: save it as UTF-8"},
	{"cannot start any token", "put a value that begins so in quotes"},
	{"did not find expected", "check the indentation of this line and of those above it"},
}

// failSyntax records that a text is no YAML.
func (d document) failSyntax(text []byte, err error) {
	o, what := d.whole(), err.Error()
	if m := parserText.FindStringSubmatch(what); m != nil {
		o.Line, o.Col, what = 1, 1, m[2]
		if m[1] != "" {
			o.Line, _ = strconv.Atoi(m[1])
		}
	}
	if line := tabbed(text); line > 0 && line <= o.Line {
		o.Line = line
		d.fail(o, "", scalar.Violate(scalar.ErrSyntax, "a tab indents the line: YAML wants spaces"))
		return
	}
	for _, r := range remedies {
		if strings.Contains(what, r.text) {
			what += ": " + r.remedy
			break
		}
	}
	d.fail(o, "", scalar.Violate(scalar.ErrSyntax, "%s", what))
}

// tabbed returns the first line that a tab indents, 0 if there is none.
func tabbed(text []byte) int {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if rest := bytes.TrimLeft(line, " "); len(rest) > 0 && rest[0] == '\t' && len(bytes.TrimSpace(rest)) > 0 {
			return n
		}
	}
	return 0
}
