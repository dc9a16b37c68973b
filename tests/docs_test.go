package tests

import (
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFlags shows that every flag of kvfs that the README uses is on the
// reference page, which is generated, or, if it is no setting, in operations or on the page of kvfs run.
func TestFlags(t *testing.T) {
	reference, err := os.ReadFile("../docs/configuration.md")
	if errors.Is(err, iofs.ErrNotExist) {
		t.Skip("docs/configuration.md is not there")
	}
	must(t, err)
	known := flagWord.FindAllString(string(reference)+read(t, "../docs/operations.md")+read(t, "../docs/engines/README.md"), -1)
	for _, f := range usedFlags(read(t, "../README.md") + read(t, "../docs/tour.md")) {
		if !slices.Contains(known, f) {
			t.Errorf("README.md or docs/tour.md uses %s, which docs/configuration.md and docs/operations.md lack", f)
		}
	}
}

// TestPlaceholders shows that nothing in the pages waits to be filled in.
func TestPlaceholders(t *testing.T) {
	for _, page := range pages(t) {
		for i, line := range strings.Split(read(t, page), "\n") {
			if strings.Contains(line, "<<fill") {
				t.Errorf("%s:%d: %s", page, i+1, line)
			}
		}
	}
}

// TestVersion shows that kvfs has the version of the newest section of the changelog.
func TestVersion(t *testing.T) {
	newest := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\]`).FindStringSubmatch(read(t, "../CHANGELOG.md"))
	if newest == nil {
		t.Fatal("CHANGELOG.md has no section with a version")
	}
	if !strings.Contains(read(t, "../cmd/kvfs/version.go"), "\nvar version = \"v"+newest[1]+"\"\n") {
		t.Errorf("version in cmd/kvfs/version.go is not v%s, the newest of CHANGELOG.md", newest[1])
	}
}

// TestUsedFlags shows what counts as a flag.
func TestUsedFlags(t *testing.T) {
	const page = "```\n$ bin/kvfs mount --memory-size=1GiB ~/kv # --not\n```\n" +
		"Run `kvfs run --memory-keep -- engine --theirs`, or cp --archive.\n"
	if got, want := usedFlags(page), []string{"--memory-size", "--memory-keep"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		found = append(found, files...)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}

var (
	kvfsCall = regexp.MustCompile(`\bkvfs +(mount|run|serve|status|umount|doctor|config|version)\b.*`)
	flagWord = regexp.MustCompile(`--[a-z][a-z0-9-]*`)
)

// usedFlags returns the flags in the command lines that call kvfs, up to a
// comment, the end of a code span, or the "--" before another program's command.
func usedFlags(page string) []string {
	var found []string
	for _, line := range strings.Split(page, "\n") {
		call := kvfsCall.FindString(line)
		for _, stop := range []string{" # ", "`", " -- "} {
			call, _, _ = strings.Cut(call, stop)
		}
		found = append(found, flagWord.FindAllString(call, -1)...)
	}
	return found
}
