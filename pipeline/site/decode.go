package site

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/cfpipe/cfpipe/internal/nearest"
	"github.com/cfpipe/cfpipe/internal/redact"
)

// Bounds of a site file. 1000 cameras with ten fields each are 30 000 tokens (they take a second); the parser's time grows with their square.
const (
	maxFile   = 1 << 20
	maxTokens = 30_000
	maxNodes  = 200_000 // visited, aliases counted each time: a file cannot multiply itself
	maxDepth  = 32
	maxErrors = 20
)

// FieldError is something wrong at a place in the file.
type FieldError struct {
	File         string
	Line, Column int
	Field        string // path such as cameras.door.record.segment; "" = the file as a whole
	Err          error
}

func (e *FieldError) Error() string {
	s := e.File
	if e.Line > 0 {
		s += fmt.Sprintf(":%d:%d", e.Line, e.Column)
	}
	if e.Field != "" {
		s += ": " + e.Field
	}
	return s + ": " + e.Err.Error()
}

func (e *FieldError) Unwrap() error { return e.Err }

// decoder turns a syntax tree into a Config and remembers where each field stands.
type decoder struct {
	file    string
	at      map[string]token.Position
	anchors map[string]ast.Node
	raw     map[string]string // text of string fields before variables are put in
	nodes   int
	matters func(path string) bool // which fields' errors are collected; nil = those of all
	errs    []error

	warnings []string
	readable map[string]bool // files of secrets that all may read, and that are told of
	private  private
}

// parse reads the text of a site file. The error joins *FieldErrors of the fields that matter (nil = all); the configuration is what could be read
// besides, nil where the text is no YAML.
func parse(file string, text []byte, matters func(path string) bool) (*Config, *decoder, error) {
	d := &decoder{file: file, at: map[string]token.Position{}, anchors: map[string]ast.Node{}, raw: map[string]string{}, matters: matters}
	fail := func(err error) (*Config, *decoder, error) { return nil, d, &FieldError{File: file, Err: err} }
	if len(text) > maxFile {
		return fail(fmt.Errorf("%d bytes: a site file has at most %d", len(text), maxFile))
	}
	if slices.Contains(text, 0) {
		return fail(errors.New("it holds a NUL byte: this is no YAML"))
	}
	tokens := lexer.Tokenize(string(text))
	if n := len(tokens); n > maxTokens {
		return fail(fmt.Errorf("%d tokens: a site file has at most %d", n, maxTokens))
	}
	if at := tooDeep(tokens); at != nil {
		return nil, d, &FieldError{File: file, Line: at.Line, Column: at.Column, Err: errors.New("nested too deeply")}
	}
	f, err := parseYAML(text)
	if err != nil {
		var ye yaml.Error
		if errors.As(err, &ye) && ye.GetToken() != nil {
			p := ye.GetToken().Position
			return nil, d, &FieldError{File: file, Line: p.Line, Column: p.Column, Err: explained(text, p.Line, ye.GetMessage())}
		}
		return fail(err)
	}
	c := defaultConfig()
	c.name = file
	var body ast.Node
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return fail(errors.New("more than one YAML document"))
		}
		body = doc.Body
	}
	if body == nil {
		return fail(errors.New("the file is empty"))
	}
	d.config(body, c)
	return c, d, errors.Join(d.errs...)
}

// explained is a parser's message about a line, in the words of who wrote the file where it is a tab that indents: YAML takes spaces alone.
func explained(text []byte, line int, message string) error {
	var at []byte
	for l := range bytes.Lines(text) {
		if at = l; line <= 1 {
			break
		}
		line--
	}
	indent := at[:len(at)-len(bytes.TrimLeft(at, " \t-"))]
	if bytes.ContainsRune(indent, '\t') {
		return errors.New("the line is indented with a tab: YAML takes spaces there")
	}
	return errors.New(message)
}

// tooDeep finds where brackets, or dashes in a row, nest deeper than any site file: each level costs the parser a look at all that follows.
func tooDeep(tokens token.Tokens) *token.Position {
	open, dashes := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open--
		}
		if t.Type == token.SequenceEntryType {
			dashes++
		} else {
			dashes = 0
		}
		if open > maxDepth || dashes > maxDepth {
			return t.Position
		}
	}
	return nil
}

// parseYAML is the parser, whose panics are errors.
func parseYAML(text []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("this is no YAML: %v", p)
		}
	}()
	return parser.ParseBytes(text, 0)
}

// config decodes defaults first, wherever they stand: the cameras begin with them.
func (d *decoder) config(n ast.Node, c *Config) {
	entries := d.mapping(n, "", 0)
	for i, e := range entries {
		if strings.HasPrefix(e.name, "x-") { // a place for anchors, as in compose files
			_ = d.resolve(e.value, e.name)
			entries[i].name = ""
		}
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool { return e.name == "" })
	v := reflect.ValueOf(c).Elem()
	for _, defaults := range []bool{true, false} {
		for _, e := range entries {
			if (e.name == "defaults") != defaults {
				continue
			}
			if e.name != "cameras" {
				d.field(v, e, "", 0)
				continue
			}
			d.at["cameras"] = e.at
			cams := d.mapping(e.value, "cameras", 1)
			if len(cams) > maxCameras {
				d.fail(e.at, "cameras", fmt.Errorf("%d cameras: one site has at most %d", len(cams), maxCameras))
				return
			}
			for _, e := range cams {
				cam := c.Defaults.clone()
				if cam.Sub == nil {
					cam.Sub = defaultSub()
				}
				path := "cameras." + e.name
				d.at[path] = e.at
				d.value(reflect.ValueOf(cam).Elem(), e.value, path, 2)
				if _, ok := d.at[path+".sub"]; !ok {
					cam.Sub = nil
				}
				c.Cameras[e.name] = cam
			}
		}
	}
}

// entry is a key of a mapping with its value.
type entry struct {
	name  string
	at    token.Position
	value ast.Node
}

func (d *decoder) fail(at token.Position, path string, err error) {
	if len(d.errs) < maxErrors && (d.matters == nil || d.matters(path)) {
		err = redact.New(d.private.values).Error(err)
		d.errs = append(d.errs, &FieldError{File: d.file, Line: at.Line, Column: at.Column, Field: path, Err: err})
	}
}

func position(n ast.Node) token.Position {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return *t.Position
	}
	return token.Position{}
}

// resolve follows anchors, aliases and tags to the node that has the value; nil after an error.
func (d *decoder) resolve(n ast.Node, path string) ast.Node {
	for range maxDepth {
		if d.nodes++; d.nodes > maxNodes {
			if d.nodes == maxNodes+1 {
				d.fail(position(n), path, errors.New("aliases make the file too large"))
			}
			return nil
		}
		switch t := n.(type) {
		case *ast.AnchorNode:
			d.anchors[t.Name.GetToken().Value] = t.Value
			n = t.Value
		case *ast.AliasNode:
			name := t.Value.GetToken().Value
			target, ok := d.anchors[name]
			if !ok {
				d.fail(position(n), path, fmt.Errorf("*%s: no &%s stands in front of it", name, name))
				return nil
			}
			n = target
		case *ast.TagNode:
			d.fail(position(n), path, errors.New("tags are not used here"))
			return nil
		case nil:
			return nil
		default:
			return n
		}
	}
	d.fail(position(n), path, errors.New("nested too deeply"))
	return nil
}

// mapping returns the entries of a mapping; a later key wins over one that was merged in.
func (d *decoder) mapping(n ast.Node, path string, depth int) []entry {
	if n = d.resolve(n, path); n == nil {
		return nil
	}
	if depth > maxDepth {
		d.fail(position(n), path, errors.New("nested too deeply"))
		return nil
	}
	var values []*ast.MappingValueNode
	switch t := n.(type) {
	case *ast.MappingNode:
		values = t.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{t}
	case *ast.NullNode:
		return nil
	default:
		d.fail(position(n), path, errors.New("want a mapping (name: value)"))
		return nil
	}
	var own, merged []entry
	for _, v := range values {
		if v.Key.IsMergeKey() {
			merged = append(merged, d.mapping(v.Value, path, depth+1)...)
			continue
		}
		key := d.resolve(v.Key, path)
		if key == nil {
			continue
		}
		name := key.GetToken().Value
		if !slices.ContainsFunc(own, func(e entry) bool { return e.name == name }) {
			own = append(own, entry{name, position(v.Key), v.Value})
		} else {
			d.fail(position(v.Key), join(path, name), errors.New("it stands here twice"))
		}
	}
	for _, m := range merged {
		if !slices.ContainsFunc(own, func(e entry) bool { return e.name == m.name }) {
			own = append(own, m)
		}
	}
	return own
}

func join(path, name string) string {
	if len(name) > 100 {
		name = name[:100] + "…"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// fieldOf finds the field that yaml calls name, inlined structs included.
func fieldOf(v reflect.Value, name string) (reflect.Value, reflect.StructField, bool) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag := f.Tag.Get("yaml")
		if tag == ",inline" {
			if v, sf, ok := fieldOf(v.Field(i), name); ok {
				return v, sf, ok
			}
		} else if tag == name && tag != "" {
			return v.Field(i), f, true
		}
	}
	return reflect.Value{}, reflect.StructField{}, false
}

func fieldNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		switch tag := f.Tag.Get("yaml"); tag {
		case "":
		case ",inline":
			names = append(names, fieldNames(f.Type)...)
		default:
			names = append(names, tag)
		}
	}
	return names
}

// field decodes one entry into the struct v.
func (d *decoder) field(v reflect.Value, e entry, path string, depth int) {
	f, sf, ok := fieldOf(v, e.name)
	path = join(path, e.name)
	if !ok {
		names, hint := fieldNames(v.Type()), ""
		if near := nearest.Name(e.name, names); near != "" {
			hint = fmt.Sprintf("; did you mean %s?", near)
		}
		d.fail(e.at, path, fmt.Errorf("unknown field%s (allowed here: %s)", hint, strings.Join(names, ", ")))
		return
	}
	d.at[path] = e.at
	n := d.resolve(e.value, path)
	if n == nil {
		return
	}
	if f.Kind() == reflect.Pointer {
		if off(n) {
			f.SetZero()
			return
		}
		if f.IsNil() {
			f.Set(fresh(f.Type().Elem()))
		}
		f = f.Elem()
	}
	if f.Kind() == reflect.Struct {
		d.value(f, n, path, depth+1)
		return
	}
	if err := d.scalar(f, sf, n, path); err != nil {
		d.fail(position(n), path, err)
	}
}

// off says whether a block is switched off: off, false, or nothing at all.
func off(n ast.Node) bool {
	switch t := n.(type) {
	case *ast.NullNode:
		return true
	case *ast.BoolNode:
		return !t.Value
	case *ast.StringNode:
		return t.Value == "off"
	}
	return false
}

// value decodes a mapping into the struct v.
func (d *decoder) value(v reflect.Value, n ast.Node, path string, depth int) {
	for _, e := range d.mapping(n, path, depth) {
		d.field(v, e, path, depth)
	}
}
