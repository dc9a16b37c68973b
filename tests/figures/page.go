package figures

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Page is a page of the documentation: prose, written by hand, and for each topic a block of generated tables between two lines:
//
//	<!-- bench: read -->
//	<!-- end -->
//
// A run replaces what is between the lines of the topics that it measured, and nothing else.
type Page struct {
	File   string
	Topics []string // that it may have
}

var marker = regexp.MustCompile(`(?m)^<!-- (?:(?:bench|sim): (\S+)|end) -->$`)

// section is a part of a text, in bytes.
type section struct{ begin, end int }

// blocks returns where the block of each topic is in a page, without its two lines.
func (p Page) blocks(page string) (map[string]section, error) {
	found := map[string]section{}
	open, begin := "", 0
	for _, m := range marker.FindAllStringSubmatchIndex(page, -1) {
		line := 1 + strings.Count(page[:m[0]], "\n")
		if m[2] < 0 {
			if open == "" {
				return nil, fmt.Errorf("line %d: an end of no topic", line)
			}
			found[open], open = section{begin, m[0]}, ""
			continue
		}
		topic := page[m[2]:m[3]]
		_, twice := found[topic]
		switch {
		case open != "":
			return nil, fmt.Errorf("line %d: topic %s begins before the end of topic %s", line, topic, open)
		case twice:
			return nil, fmt.Errorf("line %d: topic %s is there twice", line, topic)
		case !slices.Contains(p.Topics, topic):
			return nil, fmt.Errorf("line %d: no topic is named %s", line, topic)
		}
		open, begin = topic, m[1]+1
	}
	if open != "" {
		return nil, fmt.Errorf("topic %s has no end", open)
	}
	return found, nil
}

// fill returns a page with other blocks, which are by topic.
func (p Page) fill(page string, with map[string]string) (string, error) {
	places, err := p.blocks(page)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, topic := range slices.Sorted(maps.Keys(with)) {
		if _, ok := places[topic]; !ok {
			errs = append(errs, fmt.Errorf("no block of topic %s: add its two lines", topic))
		}
	}
	// From the end, so that the places before stay.
	for _, topic := range slices.SortedFunc(maps.Keys(places), func(a, b string) int { return places[b].begin - places[a].begin }) {
		if text, ok := with[topic]; ok {
			page = page[:places[topic].begin] + text + page[places[topic].end:]
		}
	}
	return page, errors.Join(errs...)
}

// Check fails if the page lacks the block of a topic, or if its blocks are wrong.
func (p Page) Check(topics []string) error {
	with := map[string]string{}
	for _, topic := range topics {
		with[topic] = ""
	}
	_, err := p.filled(with)
	return err
}

func (p Page) filled(with map[string]string) (string, error) {
	page, err := os.ReadFile(p.File)
	if err != nil {
		return "", err
	}
	filled, err := p.fill(string(page), with)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.File, err)
	}
	return filled, nil
}

// Fill replaces blocks, by topic. The file is the old or the new one at any time.
func (p Page) Fill(with map[string]string) error {
	page, err := p.filled(with)
	if err != nil {
		return err
	}
	temporary := p.File + ".new"
	if err := os.WriteFile(temporary, []byte(page), 0o644); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, p.File)
}
