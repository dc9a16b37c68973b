package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// skip is a line of a file of expected skips.
type skip struct {
	pkg          *regexp.Regexp // without the part of the path that all share
	test, reason *regexp.Regexp
}

// readSkips reads a file of expected skips. The patterns match as a whole.
func readSkips(name string) ([]skip, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	expected := []skip{}
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: want package, test and reason with a tab between them", name, n+1)
		}
		var patterns [3]*regexp.Regexp
		for i, text := range fields {
			if patterns[i], err = regexp.Compile("^(?:" + text + ")$"); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
			}
		}
		expected = append(expected, skip{patterns[0], patterns[1], patterns[2]})
	}
	return expected, nil
}

// skip counts a skip. One that is not expected is a failure.
func (r *report) skip(k id, why string) {
	for _, s := range r.expected {
		if s.pkg.MatchString(short(k.pkg)) && s.test.MatchString(k.test) && s.reason.MatchString(why) {
			r.skipped = append(r.skipped, note{k.name(), why})
			return
		}
	}
	if r.expected == nil {
		r.skipped = append(r.skipped, note{k.name(), why})
		return
	}
	r.count(k, "skipped, which is not expected here: "+why)
}
