package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dashboard is the part of Grafana's model of a dashboard that the tests look at.
type dashboard struct {
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Datasource dataSource
		}
	}
	Panels []struct {
		ID                int
		Type, Title, Unit string
		Datasource        dataSource
		GridPos           struct{ H, W, X, Y int }
		Targets           []struct {
			Expr, RefID, LegendFormat string
			Datasource                dataSource
		}
	}
}

type dataSource struct{ Type, UID string }

var (
	variable = regexp.MustCompile(`\$\{?(\w+)\}?`)
	shown    = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// readDashboard returns the dashboard, and its text.
func readDashboard(t *testing.T) (d dashboard, text string) {
	t.Helper()
	text = read(t, "../deploy/grafana/kvfs.json")
	must(t, json.Unmarshal([]byte(text), &d))
	return d, text
}

// TestDashboard shows that the dashboard is of a Grafana of today, names metrics and variables that exist, restricts each
// query to the chosen nodes, shows labels that the query keeps, and has no two panels in one place.
func TestDashboard(t *testing.T) {
	d, text := readDashboard(t)
	checkNames(t, metricTypes(t), text)
	variables := []string{"__rate_interval", "__range", "__all"}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(variables, m[1]) {
			t.Errorf("there is no variable %s", m[1])
		}
	}
	if want := []string{"datasource", "job", "instance"}; !slices.Equal(variables[3:], want) || d.SchemaVersion < 39 {
		t.Errorf("variables %q, want %q, schema %d", variables[3:], want, d.SchemaVersion)
	}
	var rows []string
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Errorf("%q and %q are both at %v", p.Title, taken[at], at)
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
		} else if len(p.Targets) == 0 {
			t.Errorf("%q shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			metrics := len(metricName.FindAllString(q.Expr, -1))
			if metrics == 0 || strings.Count(q.Expr, `{job=~"$job",instance=~"$instance"`) != metrics {
				t.Errorf("%q: %s is not about the chosen nodes", p.Title, q.Expr)
			}
			if q.Datasource.UID != "${datasource}" || p.Datasource != q.Datasource {
				t.Errorf("%q asks the data source %+v", p.Title, q.Datasource)
			}
			for _, label := range shown.FindAllStringSubmatch(q.LegendFormat, -1) {
				if by := regexp.MustCompile(` by \(([\w, ]+)\)`).FindStringSubmatch(q.Expr); by != nil && !slices.Contains(strings.Split(by[1], ", "), label[1]) {
					t.Errorf("%q: %s has no label %s", p.Title, q.Expr, label[1])
				}
			}
		}
	}
	if want := []string{"Overview", "Tiers", "Latency", "Reuse", "Cluster", "Errors"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

// TestDashboardQueries has Prometheus parse the queries of the dashboard, as rules.
func TestDashboardQueries(t *testing.T) {
	d, _ := readDashboard(t)
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h").Replace(q.Expr)
			fmt.Fprintf(&rules, "  - record: panel%d:%s\n    expr: %s\n", p.ID, strings.ToLower(q.RefID), strconv.Quote(expr))
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, []byte(rules.String()), 0o600))
	checkRules(t, file)
}
