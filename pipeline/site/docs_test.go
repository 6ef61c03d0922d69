package site

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

const referenceBegin, referenceEnd = "<!-- reference: begin -->\n", "<!-- reference: end -->"

// reference is the table of all fields, made from the tags.
func reference() string {
	var b strings.Builder
	done := map[reflect.Type]bool{}
	var table func(title string, t reflect.Type)
	table = func(title string, t reflect.Type) {
		if done[t] {
			return
		}
		done[t] = true
		fmt.Fprintf(&b, "\n### %s\n\n| field | default | meaning |\n|---|---|---|\n", title)
		type block struct {
			title string
			t     reflect.Type
		}
		var blocks []block
		var rows func(t reflect.Type)
		rows = func(t reflect.Type) {
			for i := range t.NumField() {
				f := t.Field(i)
				name := f.Tag.Get("yaml")
				if name == "" {
					continue
				}
				if name == ",inline" {
					rows(f.Type)
					continue
				}
				doc := f.Tag.Get("doc")
				if enum := f.Tag.Get("enum"); enum != "" {
					doc += " One of: " + strings.ReplaceAll(enum, "|", ", ") + "."
				}
				if lo, hi := f.Tag.Get("min"), f.Tag.Get("max"); lo != "" {
					doc += fmt.Sprintf(" %s to %s.", lo, hi)
				}
				def := f.Tag.Get("default")
				if def != "" {
					def = "`" + def + "`"
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, def, doc)
				switch e := f.Type; {
				case e.Kind() == reflect.Map:
					blocks = append(blocks, block{"cameras.KEY, defaults", e.Elem().Elem()})
				case e.Kind() == reflect.Pointer && e.Elem() != reflect.TypeFor[Stream]():
					blocks = append(blocks, block{name, e.Elem()})
				}
			}
		}
		rows(t)
		for _, x := range blocks {
			table(x.title, x.t)
		}
	}
	table("The file", reflect.TypeFor[Config]())
	return b.String() + "\n"
}

// requireGenerated checks the part of a page of docs between two marks, and returns the page. With CFPIPE_UPDATE_DOCS it writes the part
// instead, and the test ends.
func requireGenerated(t *testing.T, page, begin, want, end string) string {
	t.Helper()
	name := filepath.Join(testenv.Root(t), "docs", page)
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok)
	got, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if os.Getenv("CFPIPE_UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(name, []byte(before+begin+want+end+after), 0o644))
		t.SkipNow()
	}
	require.Equal(t, want, got, "CFPIPE_UPDATE_DOCS=1 go test ./pipeline/site -run %s writes it", t.Name())
	return string(b)
}

// The reference in docs/site.md is what the program takes. CFPIPE_UPDATE_DOCS=1 writes it.
func TestDocs(t *testing.T) {
	page := requireGenerated(t, "site.md", referenceBegin, reference(), referenceEnd)
	// The examples work.
	examples := 0
	for part := range strings.SplitSeq(page, "```yaml\n") {
		text, _, ok := strings.Cut(part, "```")
		if !ok || !strings.Contains(text, "cameras:") || !strings.Contains(text, "# site.yaml") {
			continue
		}
		dir := t.TempDir()
		for _, f := range []string{"password", "token"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, f), []byte("0123456789abcdef\n"), 0o600))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "url"), []byte("rtmp://a.example/live2/the-stream-key\n"), 0o600))
		cert, err := servercert.SelfSigned()
		require.NoError(t, err)
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600))
		text = strings.ReplaceAll(text, "/etc/cfpipe/", dir+"/")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "site.yaml"), []byte(text), 0o600))
		c, err := Load(filepath.Join(dir, "site.yaml"))
		require.NoError(t, err, text)
		lib, err := LoadRecordings(filepath.Join(dir, "site.yaml"))
		if len(c.recordings()) == 0 {
			require.ErrorContains(t, err, "nothing is recorded", text)
		} else {
			require.NoError(t, err, text)
			require.Equal(t, c.indexPath(), lib.Index)
			require.Len(t, lib.Places, len(c.places()))
		}
		examples++
	}
	require.NotZero(t, examples)
}

// Every block begins with the values that its tags tell, those of its own type.
func TestDefaults(t *testing.T) {
	require.Equal(t, Stream{Enabled: true, Transport: "auto", Timeout: Duration(10 * time.Second), Audio: true, PacketSlots: 1024, PacketBytes: 16 << 20,
		Protocol: 4, Decode: "off", FrameSlots: 4, Policy: "drop-oldest", Isolation: "none"}, defaultConfig().Defaults.Stream)
	require.False(t, defaultSub().Audio)
	require.Equal(t, &Record{Segment: Duration(time.Minute), Post: Duration(10 * time.Second), Longest: Duration(10 * time.Minute),
		Fsync: "never", Audio: true,
		Isolation: "none"}, withDefaults[Record]())
	require.Equal(t, &Infer{InFlight: 2, Latency: Duration(time.Second), Threshold: 2, Tensors: "numbers", ResultsSize: 100 << 20,
		Isolation: "none"}, withDefaults[Infer]())
	blocks := 0
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		blocks++
		fresh(typ)
		for i := range typ.NumField() {
			switch f := typ.Field(i); {
			case f.Tag.Get("yaml") == "":
			case f.Type.Kind() == reflect.Struct:
				walk(f.Type)
			case f.Type.Kind() == reflect.Pointer, f.Type.Kind() == reflect.Map:
				for f.Type.Kind() != reflect.Struct {
					f.Type = f.Type.Elem()
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	require.Greater(t, blocks, 10)
}

func TestSchema(t *testing.T) {
	var s map[string]any
	require.NoError(t, json.Unmarshal(Schema(), &s))
	at := func(path ...string) any {
		var v any = s
		for _, p := range path {
			m, ok := v.(map[string]any)
			require.True(t, ok, "%v", path)
			v = m[p]
		}
		return v
	}
	require.Equal(t, false, at("additionalProperties"))
	require.NotNil(t, at("properties", "cameras", "additionalProperties", "properties", "source", "description"))
	require.NotNil(t, at("properties", "defaults", "properties", "record", "anyOf"))
}
