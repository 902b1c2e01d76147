// Command rules tests alerts: it reads a rule file of Prometheus and a file of tests in the form of
// `promtool test rules` (of which it knows input_series and alert_rule_test), and evaluates with
// Prometheus' own engine. promtool itself cannot be had from the module proxy with all it depends on.
//
//	rules RULES.yaml TESTS.yaml
//
// It prints "ok" or "FAIL" with the name of each test, and ends with 1 if one failed, or if a rule has no
// test in which it fires and none in which it does not.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"go.yaml.in/yaml/v3"
)

type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

type tests struct {
	Tests []test
}

type test struct {
	Name        string
	Interval    string
	InputSeries []struct {
		Series string
		Values string
	} `yaml:"input_series"`
	AlertRuleTest []struct {
		EvalTime  string `yaml:"eval_time"`
		Alertname string
		ExpAlerts []struct {
			ExpLabels      map[string]string `yaml:"exp_labels"`
			ExpAnnotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

// A sample at a time, in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// Series in memory.
type series []*storage.SeriesEntry

func (all series) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		var found series
		for _, one := range all {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Lset.Get(m.Name)) }) {
				found = append(found, one)
			}
		}
		slices.SortFunc(found, func(a, b *storage.SeriesEntry) int { return labels.Compare(a.Lset, b.Lset) })
		return &set{rest: found}
	}}, nil
}

type set struct {
	rest series
	now  *storage.SeriesEntry
}

func (s *set) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.now, s.rest = s.rest[0], s.rest[1:]
	return true
}
func (s *set) At() storage.Series                { return s.now }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: rules RULES.yaml TESTS.yaml"))
	}
	var of rules
	var with tests
	fail(read(os.Args[1], &of))
	fail(read(os.Args[2], &with))
	alerts := map[string]rule{}
	for _, group := range of.Groups {
		for _, rule := range group.Rules {
			alerts[rule.Alert] = rule
		}
	}
	promql := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	failed := false
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range with.Tests {
		if err := run(promql, alerts, test, fires, rests); err != nil {
			failed = true
			fmt.Printf("FAIL %s: %v\n", test.Name, err)
		} else {
			fmt.Printf("ok   %s\n", test.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(alerts)) {
		if !fires[name] || !rests[name] {
			failed = true
			fmt.Printf("FAIL %s: is not tested both ways\n", name)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func run(engine *promql.Engine, alerts map[string]rule, test test, fires, rests map[string]bool) error {
	interval, err := duration(test.Interval, time.Minute)
	if err != nil {
		return err
	}
	var input series
	reader := parser.NewParser(parser.Options{})
	for _, one := range test.InputSeries {
		set, values, err := reader.ParseSeriesDesc(one.Series + " " + one.Values)
		if err != nil {
			return fmt.Errorf("%s: %w", one.Series, err)
		}
		var samples []chunks.Sample
		for step, value := range values {
			if !value.Omitted {
				samples = append(samples, sample{int64(step) * interval.Milliseconds(), value.Value})
			}
		}
		input = append(input, storage.NewListSeries(set, samples))
	}
	for _, want := range test.AlertRuleTest {
		rule, known := alerts[want.Alertname]
		if !known {
			return fmt.Errorf("there is no alert %s", want.Alertname)
		}
		at, err := duration(want.EvalTime, 0)
		if err != nil {
			return err
		}
		got, err := firing(engine, input, rule, at, interval)
		if err != nil {
			return fmt.Errorf("%s: %w", rule.Alert, err)
		}
		var wanted []string
		for _, alert := range want.ExpAlerts {
			wanted = append(wanted, describe(alert.ExpLabels, alert.ExpAnnotations))
		}
		found := []string{}
		for _, alert := range got {
			// What the test does not name it does not ask for.
			named := map[string]string{}
			if len(want.ExpAlerts) > 0 {
				for key := range want.ExpAlerts[0].ExpAnnotations {
					named[key] = alert.annotations[key]
				}
			}
			found = append(found, describe(alert.labels, named))
		}
		slices.Sort(wanted)
		slices.Sort(found)
		if !slices.Equal(wanted, found) {
			return fmt.Errorf("%s at %s:\n     wanted %s\n     found  %s", rule.Alert, want.EvalTime,
				strings.Join(wanted, " "), strings.Join(found, " "))
		}
		fires[rule.Alert] = fires[rule.Alert] || len(found) > 0
		rests[rule.Alert] = rests[rule.Alert] || len(found) == 0
	}
	return nil
}

type alert struct {
	labels, annotations map[string]string
}

// The alerts whose expression has held since `for` before this time.
func firing(engine *promql.Engine, input series, rule rule, at, interval time.Duration) ([]alert, error) {
	pause, err := duration(rule.For, 0)
	if err != nil {
		return nil, err
	}
	var held map[string]alert
	for moment := at - pause; moment <= at; moment += interval {
		query, err := engine.NewInstantQuery(context.Background(), input, nil, rule.Expr, time.UnixMilli(0).Add(moment))
		if err != nil {
			return nil, err
		}
		vector, err := query.Exec(context.Background()).Vector()
		if err != nil {
			return nil, err
		}
		now := map[string]alert{}
		for _, found := range vector {
			key := found.Metric.String()
			if held != nil {
				if _, before := held[key]; !before {
					continue
				}
			}
			one := alert{found.Metric.Map(), map[string]string{}}
			for name, text := range rule.Annotations {
				expanded, err := template.NewTemplateExpander(context.Background(),
					"{{$labels := .Labels}}{{$value := .Value}}"+text, name,
					template.AlertTemplateData(one.labels, nil, "", found), model.TimeFromUnixNano(int64(moment)), nil, nil, nil).Expand()
				if err != nil {
					return nil, fmt.Errorf("annotation %s: %w", name, err)
				}
				one.annotations[name] = expanded
			}
			for name, value := range rule.Labels {
				one.labels[name] = value
			}
			delete(one.labels, "__name__")
			now[key] = one
		}
		query.Close()
		held = now
	}
	return slices.Collect(maps.Values(held)), nil
}

func describe(all ...map[string]string) string {
	var parts []string
	for _, one := range all {
		for _, key := range slices.Sorted(maps.Keys(one)) {
			parts = append(parts, fmt.Sprintf("%s=%q", key, one[key]))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func duration(text string, otherwise time.Duration) (time.Duration, error) {
	if text == "" {
		return otherwise, nil
	}
	parsed, err := model.ParseDuration(text)
	return time.Duration(parsed), err
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, into)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
