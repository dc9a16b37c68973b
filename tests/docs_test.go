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
	"unicode"
)

// TestLinks shows that every relative link in the pages of the root and of docs
// leads to a file, and to a heading where it names one.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, link := range links(read(t, page)) {
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s: %v", page, link, err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: link to %s: no such heading", page, link)
			}
		}
	}
}

// TestFlags shows that every flag of kvfs that the README uses is on the
// reference page, which is generated, or, if it is no setting, in operations or on the page of kvfs run.
func TestFlags(t *testing.T) {
	reference, err := os.ReadFile("../docs/configuration.md")
	if errors.Is(err, iofs.ErrNotExist) {
		t.Skip("docs/configuration.md is not there")
	}
	if err != nil {
		t.Fatal(err)
	}
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

// TestDocsHelpers shows what counts as a link, a heading and a flag.
func TestDocsHelpers(t *testing.T) {
	const page = "# One `two`: three_four!\n" +
		"[a](x.md) and ![b](y.png \"title\"), `[not](code)`\n" +
		"[ref]: ../z.md#part\n" +
		"```\n# no heading\n[no](link.md)\n$ bin/kvfs mount --memory-size=1GiB ~/kv # --not\n```\n" +
		"Run `kvfs run --memory-keep -- engine --theirs`, or cp --archive.\n"
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"links", links(page), []string{"x.md", "y.png", "../z.md#part"}},
		{"anchors", anchors(page), []string{"one-two-three_four"}},
		{"flags", usedFlags(page), []string{"--memory-size", "--memory-keep"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
		}
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, files...)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	codeSpan   = regexp.MustCompile("`[^`]*`")
	inlineLink = regexp.MustCompile(`\]\(([^)\s]+)[^)]*\)|^\[[^\]]+\]:\s*(\S+)`)
	kvfsCall   = regexp.MustCompile(`\bkvfs +(mount|run|serve|status|umount|doctor|config|version)\b.*`)
	flagWord   = regexp.MustCompile(`--[a-z][a-z0-9-]*`)
)

// links returns the targets of the links outside code.
func links(page string) []string {
	var found []string
	for _, line := range prose(page) {
		for _, m := range inlineLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
			found = append(found, m[1]+m[2])
		}
	}
	return found
}

// anchors returns the names that GitHub gives to the headings.
func anchors(page string) []string {
	var found []string
	for _, line := range prose(page) {
		title := strings.TrimLeft(line, "#")
		if title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		found = append(found, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(title)))
	}
	return found
}

// prose returns the lines outside fenced code.
func prose(page string) []string {
	var out []string
	fenced := false
	for _, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			out = append(out, line)
		}
	}
	return out
}

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
