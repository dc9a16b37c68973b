// Site writes the documentation as HTML, from the same files that are read in the tree. It fails if a page is not in
// the table of pages, or if a link leads nowhere. `make site` runs it.
//
//	go run ./docs/site DIR
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// section is a part of the navigation.
type section struct {
	Title string
	Pages []string // files, below the root of the tree
}

// nav has every page, in the order in which one reads them.
func nav() []section {
	return []section{
		{"Start", []string{"README.md", "docs/tour.md", "docs/faq.md", "docs/glossary.md", "docs/performance.md", "docs/benchmarks.md"}},
		{"Engines", []string{"docs/engines/README.md", "docs/engines/vllm.md", "docs/engines/sglang.md", "docs/engines/lmcache.md",
			"docs/engines/llm-d.md", "docs/engines/llama.cpp.md", "docs/engines/nixl.md", "docs/engines/dynamo.md",
			"docs/engines/mooncake.md", "docs/engines/other.md", "docs/engines/gpu.md"}},
		{"Use", []string{"docs/semantics.md", "docs/durability.md", "docs/quotas.md", "docs/control.md", "docs/events.md", "clients/python/README.md", "clients/go/README.md", "docs/sizing.md"}},
		{"Operate", []string{"docs/operations.md", "docs/configuration.md", "docs/metrics.md",
			"docs/cluster.md", "docs/object.md", "docs/rdma.md", "docs/security.md", "docs/standalone.md", "docs/kubernetes.md"}},
		{"Develop", []string{"docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}},
	}
}

// move says which page has the text of an old one. A link to one of the headings leads to the heading of that name,
// any other link to the heading of to.
type move struct {
	from, to string
	headings []string // of the old page that the new one has, too
}

// moved has the pages that are part of others now. The site leads from the old addresses to the new ones. A file of an old
// name may be in the tree, for messages of the program that name it; it is not a page.
func moved() []move {
	return []move{
		{"docs/comparison.md", "docs/faq.md#when-another-system-fits-better", []string{"what-kvfs-does-not-do"}},
		{"docs/debugging.md", "docs/operations.md#find-your-symptom", []string{"nothing-answers", "a-block-is-not-there", "memory-is-full",
			"opens-or-reads-are-slow", "events-have-gaps", "reporting-a-fault"}},
		{"docs/status.md", "docs/metrics.md#the-status-document", []string{"hits-and-misses", "mount-storemounts-a-mount", "store-an-owner-of-many-mounts",
			"tiers-all-tiers", "groups-groups-of-blocks", "quotas-quotas-of-memory", "counters-events-in-memory", "reads-where-readers-found-blocks",
			"secondaries-the-tiers-below-memory", "cluster-the-peers", "clustermembers-the-nodes", "clusternode-this-nodes-part",
			"events-the-event-log", "memory-the-directory-of-the-blocks-in-memory", "process-resources-of-the-daemon"}},
		{"docs/features.md", "CONTRIBUTING.md#where-things-are", nil},
		{"docs/page.md", "docs/operations.md#the-page", []string{"who-may-see-it"}},
		{"docs/alerts.md", "docs/operations.md#alerts", []string{"kvfsdown", "kvfsnotready", "kvfshangs", "kvfstieroffline", "kvfsdeviceoffline",
			"kvfschecksumfailures", "kvfsioerrors", "kvfsbreakeropen", "kvfspeersfailed", "kvfsfeedlag", "kvfslocationmemoryfull",
			"kvfsmemoryfullofopenfiles", "kvfsmemoryfullofleasedblocks", "kvfswritesrefused", "kvfsevictionwithoutcopy",
			"kvfshitratecollapse", "kvfswritebudgetusedup", "kvfsslowloads", "kvfsfallback"}},
	}
}

// movedTo returns the new page and heading for the file of an old page, and the file itself if it was not moved.
func movedTo(file, anchor string) (string, string) {
	for _, m := range moved() {
		if m.from == file {
			page, heading, _ := strings.Cut(m.to, "#")
			if slices.Contains(m.headings, anchor) {
				heading = anchor
			}
			return page, heading
		}
	}
	return file, anchor
}

var (
	//go:embed page.html
	pageHTML string
	//go:embed moved.html
	movedHTML string
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: site DIR")
		os.Exit(2)
	}
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err == nil {
		err = write(strings.TrimSpace(string(root)), os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// page is one file of Markdown.
type page struct {
	file    string
	text    []byte
	doc     ast.Node
	title   string
	anchors []string
}

// site is all pages by their files, and the other files that they lead to.
type site struct {
	root   string
	pages  map[string]*page
	copied map[string]bool
	errs   []error
}

// write writes the pages of the tree at root to a directory. It reports all faults.
func write(root, dir string) error {
	s := &site{root: root, pages: map[string]*page{}, copied: map[string]bool{}}
	for _, part := range nav() {
		for _, file := range part.Pages {
			p, err := parse(root, file)
			if err != nil {
				return err
			}
			s.pages[file] = p
		}
	}
	if err := s.missing(); err != nil {
		return err
	}
	for _, p := range s.pages {
		s.links(p)
	}
	for _, m := range moved() {
		s.checkMove(m)
	}
	if err := errors.Join(s.errs...); err != nil {
		return err
	}
	for _, p := range s.pages {
		if err := s.render(p, dir); err != nil {
			return err
		}
	}
	for _, m := range moved() {
		if err := redirect(m, dir); err != nil {
			return err
		}
	}
	for file := range s.copied {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err == nil {
			err = create(filepath.Join(dir, file), data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// missing fails for pages of the tree that the navigation lacks.
func (s *site) missing() error {
	var errs []error
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "clients/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(s.root, pattern))
		errs = append(errs, err)
		for _, file := range found {
			rel, err := filepath.Rel(s.root, file)
			if now, _ := movedTo(filepath.ToSlash(rel), ""); err == nil && s.pages[now] == nil {
				err = fmt.Errorf("%s is not in the table of docs/site/main.go", rel)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// markdown reads pages as GitHub does.
func markdown() goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
}

// parse reads a page.
func parse(root, file string) (*page, error) {
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	ids := &anchors{}
	p := &page{file: file, text: data, title: file}
	p.doc = markdown().Parser().Parse(text.NewReader(data), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	if h, ok := p.doc.FirstChild().(*ast.Heading); ok {
		p.title = string(h.Lines().Value(data))
	}
	p.anchors = ids.made
	return p, nil
}

// anchors gives headings the names that GitHub gives them.
type anchors struct{ made []string }

// Generate implements parser.IDs.
func (a *anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, string(bytes.TrimSpace(heading)))
	unique := name
	for i := 1; slices.Contains(a.made, unique); i++ {
		unique = name + "-" + strconv.Itoa(i)
	}
	a.Put([]byte(unique))
	return []byte(unique)
}

// Put implements parser.IDs.
func (a *anchors) Put(name []byte) { a.made = append(a.made, string(name)) }

// links makes the links of a page lead to pages of the site, and to files that are copied.
func (s *site) links(p *page) {
	err := ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				n.Destination = s.link(p, string(n.Destination))
			}
		case *ast.Image:
			if entering {
				n.Destination = s.link(p, string(n.Destination))
			}
		}
		return ast.WalkContinue, nil
	})
	s.errs = append(s.errs, err)
}

func (s *site) link(from *page, to string) []byte {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return []byte(to)
	}
	file, anchor, _ := strings.Cut(to, "#")
	target := from.file
	if file != "" {
		target = path.Join(path.Dir(from.file), file)
	}
	info, err := os.Stat(filepath.Join(s.root, target))
	target, anchor = movedTo(target, anchor)
	p := s.pages[target]
	switch {
	case err != nil:
		s.errs = append(s.errs, fmt.Errorf("%s: link to %s: no such file", from.file, to))
	case p != nil && anchor != "" && !slices.Contains(p.anchors, anchor):
		s.errs = append(s.errs, fmt.Errorf("%s: link to %s: no such heading", from.file, to))
	case p != nil && file == "":
	case p != nil:
		to = relative(from.file, htmlName(target))
		if anchor != "" {
			to += "#" + anchor
		}
	case info.IsDir():
		s.errs = append(s.errs, fmt.Errorf("%s: link to %s: no such file", from.file, to))
	default:
		s.copied[target] = true
	}
	return []byte(to)
}

// htmlName returns the name of a page in the site.
func htmlName(file string) string {
	if dir, ok := strings.CutSuffix(file, "README.md"); ok {
		return dir + "index.html"
	}
	return strings.TrimSuffix(file, ".md") + ".html"
}

// relative returns how a link on the page of one file leads to another file.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}

// item is a line of the navigation.
type item struct {
	Title, Link string
	Here        bool
}

func (s *site) render(p *page, dir string) error {
	var body, out bytes.Buffer
	if err := markdown().Renderer().Render(&body, p.text, p.doc); err != nil {
		return err
	}
	type part struct {
		Title string
		Items []item
	}
	var parts []part
	for _, n := range nav() {
		var items []item
		for _, file := range n.Pages {
			items = append(items, item{s.pages[file].title, relative(p.file, htmlName(file)), file == p.file})
		}
		parts = append(parts, part{n.Title, items})
	}
	t, err := template.New("page").Parse(pageHTML)
	if err == nil {
		err = t.Execute(&out, map[string]any{"Title": p.title, "Nav": parts, "Body": template.HTML(body.String())})
	}
	if err != nil {
		return err
	}
	return create(filepath.Join(dir, htmlName(p.file)), out.Bytes())
}

// checkMove reports a page that was moved and is there, and headings that the new page lacks.
func (s *site) checkMove(m move) {
	file, heading, _ := strings.Cut(m.to, "#")
	p := s.pages[file]
	if s.pages[m.from] != nil || p == nil {
		s.errs = append(s.errs, fmt.Errorf("%s moved to %s: both or none are pages", m.from, m.to))
		return
	}
	for _, name := range append([]string{heading}, m.headings...) {
		if !slices.Contains(p.anchors, name) {
			s.errs = append(s.errs, fmt.Errorf("%s moved to %s: no such heading: %s", m.from, file, name))
		}
	}
}

// redirect writes a file at the old address of a page, from which browsers go on to the new one.
func redirect(m move, dir string) error {
	file, heading, _ := strings.Cut(m.to, "#")
	var out bytes.Buffer
	t, err := template.New("moved").Parse(movedHTML)
	if err == nil {
		err = t.Execute(&out, map[string]any{"Page": relative(m.from, htmlName(file)), "Heading": heading, "Headings": m.headings})
	}
	if err != nil {
		return err
	}
	return create(filepath.Join(dir, htmlName(m.from)), out.Bytes())
}

// create writes a file, and makes its directory.
func create(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}
