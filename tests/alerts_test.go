package tests

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

const alertsFile = "../deploy/prometheus/alerts.yaml"

var (
	alertName   = regexp.MustCompile(`(?m)^ *- alert: (\w+)$`)
	sectionName = regexp.MustCompile(`(?m)^### (Kvfs\w+)$`)
	metricName  = regexp.MustCompile(`\b(?:kvfs|process)_[a-z]\w+`)
	metricRow   = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\|")
	partOf      = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// metricTypes returns the type of each metric in docs/metrics.md. TestDocs of cmd/kvfs/metrics shows that these are the
// metrics that exist.
func metricTypes(t *testing.T) map[string]string {
	t.Helper()
	types := map[string]string{}
	for _, row := range metricRow.FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		types[row[1]] = row[2]
	}
	if len(types) < 50 {
		t.Fatalf("docs/metrics.md has %d metrics", len(types))
	}
	return types
}

// checkNames fails the test for names of metrics in a text that do not exist.
func checkNames(t *testing.T, types map[string]string, text string) {
	t.Helper()
	for _, name := range metricName.FindAllString(text, -1) {
		if base := partOf.ReplaceAllString(name, ""); types[name] == "" && types[base] != "histogram" {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// TestAlerts shows that each alert names metrics that exist, and has a section that says what to do.
func TestAlerts(t *testing.T) {
	types := metricTypes(t)
	rules, page := read(t, alertsFile), read(t, "../docs/operations.md")
	for _, file := range []string{rules, page} {
		checkNames(t, types, file)
	}
	var alerts []string
	for _, m := range alertName.FindAllStringSubmatch(rules, -1) {
		alerts = append(alerts, strings.ToLower(m[1]))
	}
	if len(alerts) < 10 || strings.Count(rules, "\n        expr: ") != len(alerts) || strings.Count(rules, "severity: ") != len(alerts) {
		t.Errorf("%d alerts, and as many expressions and severities?", len(alerts))
	}
	var sections []string
	for _, m := range sectionName.FindAllStringSubmatch(page, -1) {
		sections = append(sections, strings.ToLower(m[1]))
	}
	slices.Sort(sections)
	slices.Sort(alerts)
	if !slices.Equal(sections, alerts) {
		t.Errorf("alerts %q have sections %q", alerts, sections)
	}
	for _, name := range alerts {
		if !strings.Contains(rules, `runbook_url: "docs/operations.md#`+name+`"`) {
			t.Errorf("%s does not lead to its section", name)
		}
	}
}

// TestPromtool has Prometheus check the rules, where its Debian package is installed.
func TestPromtool(t *testing.T) { checkRules(t, alertsFile) }

// checkRules has Prometheus check a file of rules, where its Debian package is installed.
func checkRules(t *testing.T, file string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		harness.Skip(t, "no promtool: install the package prometheus")
	}
	if out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
