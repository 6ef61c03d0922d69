package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

const metricsBegin, metricsEnd = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"

// documented is a metric as its description has it.
type documented struct{ name, help, labels string }

var description = regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: (".*"), constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// allMetrics are those that a site describes, in the order of their definition.
func allMetrics(t *testing.T) (list []documented) {
	t.Helper()
	out := make(chan *prometheus.Desc, 10_000)
	(&siteCollector{}).Describe(out)
	close(out)
	for d := range out {
		m := description.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		help, err := strconv.Unquote(m[2])
		require.NoError(t, err)
		list = append(list, documented{m[1], help, strings.ReplaceAll(m[3], ",", ", ")})
	}
	return list
}

// metricsTable is docs/metrics.md's table of all metrics.
func metricsTable(all []documented) string {
	var b strings.Builder
	b.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, m := range all {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, m.labels, m.help)
	}
	return b.String()
}

// ruleFile is what a Prometheus rule file holds.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

// dashboard is what is looked at of a Grafana dashboard.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Definition string }
	}
}

// expressions returns the PromQL of dashboard and alert rules, by what it is of.
func expressions(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	b, err := os.ReadFile(filepath.Join(dir, "alerts.yaml"))
	require.NoError(t, err)
	var rules ruleFile
	require.NoError(t, yaml.Unmarshal(b, &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			require.Empty(t, all[r.Alert], "two alerts of one name")
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.NotEmpty(t, r.Annotations["runbook"], r.Alert)
			require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
			all[r.Alert] = r.Expr
		}
	}
	b, err = os.ReadFile(filepath.Join(dir, "cfpipe.json"))
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(b, &d))
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			require.NotEmpty(t, target.Expr, p.Title)
			all[fmt.Sprintf("%s %d", p.Title, i)] = target.Expr
		}
	}
	for i, v := range d.Templating.List {
		if v.Definition != "" {
			all[fmt.Sprintf("variable %d", i)] = v.Definition
		}
	}
	return all
}

// Every metric is exported by a site at work and documented, and dashboard and alerts name no other. CFPIPE_UPDATE_DOCS=1 writes the table.
func TestMetricsDocumented(t *testing.T) {
	t.Parallel()
	root, all := testenv.Root(t), allMetrics(t)
	requireGenerated(t, "metrics.md", metricsBegin, metricsTable(all), metricsEnd)

	h := newHost(t, 1)
	addrs := h.serves(testToken)
	h.start(`
http: {listen: '127.0.0.1:0', token_file: token}
retention: {age: 1d}
cameras:
  KEYa:
    source: CAM0
    decode: cpu
    record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s}
    events: {out: 'events/%{key}/%s-%f.mp4'}
    infer: {to: 'nnrps://127.0.0.1:1', results: 'results/%{key}/%Y-%m-%d.jsonl'}
    push: {to: 'rtsp://127.0.0.1:1/KEYa'}
`)
	addr := (<-addrs).String()
	exported := map[string]bool{}
	testenv.Eventually(t, 30*time.Second, func() error { // readers tell how far they are every few seconds
		_, _, body := request(t, addr, "GET", "/metrics", "Bearer "+testToken)
		clear(exported)
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(string(body), -1) {
			exported[m[1]] = true
			if strings.HasPrefix(m[1], "cfpipe_") {
				require.Equal(t, strings.HasSuffix(m[1], "_total"), m[2] == "counter", m[1])
			}
		}
		for _, m := range all {
			if !exported[m.name] {
				return errors.New(m.name + " is not exported")
			}
		}
		return nil
	})
	var names []string
	for _, m := range all {
		names = append(names, m.name)
	}
	for name := range exported {
		if strings.HasPrefix(name, "cfpipe_") {
			require.Contains(t, names, name)
		}
	}
	used := regexp.MustCompile(`\b(cfpipe|process|go)_[a-z0-9_]+\b`)
	for of, expr := range expressions(t, filepath.Join(root, "docs", "grafana")) {
		found := used.FindAllString(expr, -1)
		require.NotEmpty(t, append(found, regexp.MustCompile(`\bup\{`).FindAllString(expr, 1)...), "%s: %s", of, expr)
		for _, name := range found {
			require.True(t, exported[name], "%s: no metric %s", of, name)
		}
	}
}

// Prometheus' own tool reads the rules, their tests and what the dashboard asks.
func TestAlertRules(t *testing.T) {
	promtool := os.Getenv("CFPIPE_PROMTOOL")
	if promtool == "" {
		t.Skip("no promtool: export CFPIPE_PROMTOOL=$(scripts/promtool)")
	}
	dir := filepath.Join(testenv.Root(t), "docs", "grafana")
	run := func(arg ...string) {
		t.Helper()
		out, err := exec.Command(promtool, arg...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run("check", "rules", filepath.Join(dir, "alerts.yaml"))
	run("test", "rules", filepath.Join(dir, "alerts_test.yaml"))

	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	all := expressions(t, dir)
	for i, of := range slices.Sorted(func(yield func(string) bool) {
		for of := range all {
			if !strings.HasPrefix(of, "variable") && !yield(of) {
				return
			}
		}
	}) {
		expr := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$key", ".*").Replace(all[of])
		fmt.Fprintf(&rules, "  - {record: 'dashboard:%d', expr: '%s'}\n", i, strings.ReplaceAll(expr, "'", "''"))
	}
	name := filepath.Join(t.TempDir(), "dashboard.yaml")
	require.NoError(t, os.WriteFile(name, []byte(rules.String()), 0o600))
	run("check", "rules", name)
}
