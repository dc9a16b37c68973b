package main

import (
	"fmt"
	"runtime"
	"time"

	"github.com/kvfs/kvfs/tests/figures"
)

// performance is the page that has a block for each topic.
func performance(file string) figures.Page { return figures.Page{File: file, Topics: topics()} }

// writePage puts the tables of the measured topics into a page.
func writePage(file, measured string, r *report) error {
	with := map[string]string{}
	for topic := range r.tables {
		if text := r.block(topic); text != "" {
			with[topic] = "\n" + measured + "\n" + text + "\n"
		}
	}
	return performance(file).Fill(with)
}

// measured says in a line what the tables of a page are from.
func (c *config) measured(at time.Time) string {
	return fmt.Sprintf("Measured on %s: %s, %d cores, Linux %s; %d rounds.", at.Format(time.DateOnly), processor(), runtime.NumCPU(), kernel(), c.rounds)
}
