package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A page of the documentation is prose, written by hand, and for each topic a block of generated tables between two lines:
//
//	<!-- bench: read -->
//	<!-- end -->
//
// A run replaces what is between the lines of the topics that it measured, and nothing else.

var marker = regexp.MustCompile(`(?m)^<!-- (?:bench: (\S+)|end) -->$`)

// section is a part of a text, in bytes.
type section struct{ begin, end int }

// blocks returns where the block of each topic is in a page, without its two lines.
func blocks(page string) (map[string]section, error) {
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
		case !slices.Contains(topics(), topic):
			return nil, fmt.Errorf("line %d: no topic is named %s", line, topic)
		}
		open, begin = topic, m[1]+1
	}
	if open != "" {
		return nil, fmt.Errorf("topic %s has no end", open)
	}
	return found, nil
}

// fillPage returns a page with other blocks, which are by topic.
func fillPage(page string, with map[string]string) (string, error) {
	places, err := blocks(page)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, topic := range slices.Sorted(maps.Keys(with)) {
		if _, ok := places[topic]; !ok {
			errs = append(errs, fmt.Errorf("no block of topic %s: add the lines <!-- bench: %s --> and <!-- end -->", topic, topic))
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

// checkPage fails if a page lacks the block of a topic, or if its blocks are wrong.
func checkPage(file string, topics []string) error {
	with := map[string]string{}
	for _, topic := range topics {
		with[topic] = ""
	}
	_, err := filledPage(file, with)
	return err
}

func filledPage(file string, with map[string]string) (string, error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	filled, err := fillPage(string(page), with)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return filled, nil
}

// writePage puts the tables of the measured topics into a page. The file is the old or the new one at any time.
func writePage(file, measured string, r *report) error {
	with := map[string]string{}
	for topic := range r.tables {
		if text := r.block(topic); text != "" {
			with[topic] = "\n" + measured + "\n" + text + "\n"
		}
	}
	page, err := filledPage(file, with)
	if err != nil {
		return err
	}
	temporary := file + ".new"
	if err := os.WriteFile(temporary, []byte(page), 0o644); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, file)
}

// measured says in a line what the tables of a page are from.
func (c *config) measured(at time.Time) string {
	return fmt.Sprintf("Measured on %s: %s, %d cores, Linux %s; %d rounds.", at.Format(time.DateOnly), processor(), runtime.NumCPU(), kernel(), c.rounds)
}
