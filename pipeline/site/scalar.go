package site

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/cfpipe/cfpipe/internal/redact"
)

// scalar decodes one value, or a list of them, into the field f.
func (d *decoder) scalar(f reflect.Value, sf reflect.StructField, n ast.Node, path string) error {
	if f.Kind() == reflect.Slice {
		return d.list(f, sf, n, path)
	}
	var text string
	switch t := n.(type) {
	case *ast.StringNode:
		text = t.Value
	case *ast.LiteralNode:
		text = t.Value.Value
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
		text = n.GetToken().Value
	case *ast.NullNode:
		text = ""
	default:
		return errors.New("want one value, not a list or a mapping")
	}
	raw := text
	text, vars, secret, err := expand(raw)
	if err != nil {
		return err
	}
	isText := f.Kind() == reflect.String && sf.Tag.Get("enum") == ""
	if isText && sf.Tag.Get("shown") == "" {
		d.private.note(raw, vars)
	}
	if sf.Tag.Get("secret") != "" && text != "" && !secret {
		return fmt.Errorf("a secret must not stand in this file: write %s: ${VARIABLE}, or %s_file with the name of a file",
			sf.Tag.Get("yaml"), sf.Tag.Get("yaml"))
	}
	if _, ok := f.Addr().Interface().(*string); ok {
		d.raw[path] = raw
	}
	if err := setText(f, sf, text); err != nil && len(vars) > 0 {
		return fmt.Errorf("the value of %.60q is not what is wanted: %w", raw, redact.New([]string{text, fmt.Sprintf("%.60q", text)}).Error(err))
	} else if err != nil {
		return err
	}
	return nil
}

// setDefaults sets the fields of a struct to what their tags say.
func setDefaults(v reflect.Value) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		if sf.Tag.Get("yaml") == ",inline" {
			setDefaults(v.Field(i))
		}
		text, ok := sf.Tag.Lookup("default")
		if !ok {
			continue
		}
		if err := setText(v.Field(i), sf, text); err != nil {
			panic(fmt.Sprintf("default of %s.%s: %v", v.Type(), sf.Name, err)) // a tag of this package
		}
	}
}

// setText sets the field f to a value as it is written.
func setText(f reflect.Value, sf reflect.StructField, text string) error {
	enum := sf.Tag.Get("enum")
	if text == "false" && strings.HasPrefix(enum, "off|") { // off is a boolean in YAML 1.1
		text = "off"
	}
	if enum != "" && !slices.Contains(strings.Split(enum, "|"), text) {
		return fmt.Errorf("%.60q: want %s", text, oneOf(enum))
	}
	switch p := f.Addr().Interface().(type) {
	case *string:
		*p = text
	case *bool:
		switch text {
		case "true", "yes", "on":
			*p = true
		case "false", "no", "off":
			*p = false
		default:
			return fmt.Errorf("%.60q: want true or false", text)
		}
	case *int:
		v, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%.60q: want a whole number%s", text, bounds(sf))
		}
		*p = v
		return inBounds(int64(v), text, sf)
	case *float64:
		v, err := strconv.ParseFloat(text, 64)
		if lo, hi := floatBounds(sf); err != nil || !(v >= lo && v <= hi) { // NaN is no number
			return fmt.Errorf("%.60q: want a number%s", text, bounds(sf))
		}
		*p = v
	case *Size:
		v, err := ParseSize(text)
		if err != nil {
			return fmt.Errorf("%.60q: %w", text, err)
		}
		*p = Size(v)
		return inBounds(v, text, sf)
	case *Duration:
		v, err := ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%.60q: %w", text, err)
		}
		*p = Duration(v)
	default:
		return fmt.Errorf("a %T cannot be read", p)
	}
	return nil
}

func (d *decoder) list(f reflect.Value, sf reflect.StructField, n ast.Node, path string) error {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return errors.New("want a list")
	}
	list := reflect.MakeSlice(f.Type(), len(seq.Values), len(seq.Values))
	for i, v := range seq.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		v = d.resolve(v, at)
		if v == nil {
			return nil
		}
		d.at[at] = position(v)
		if list.Index(i).Kind() == reflect.Slice {
			return errors.New("want a list of values")
		}
		if err := d.scalar(list.Index(i), sf, v, at); err != nil {
			d.fail(position(v), at, err)
		}
	}
	f.Set(list)
	return nil
}

func oneOf(enum string) string {
	list := strings.Split(enum, "|")
	if len(list) == 1 {
		return list[0]
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}

func bounds(sf reflect.StructField) string {
	lo, hi := sf.Tag.Get("min"), sf.Tag.Get("max")
	if lo == "" || hi == "" {
		return ""
	}
	return " from " + lo + " to " + hi
}

func floatBounds(sf reflect.StructField) (lo, hi float64) {
	lo, hi = -math.MaxFloat64, math.MaxFloat64
	if v, err := strconv.ParseFloat(sf.Tag.Get("min"), 64); err == nil {
		lo = v
	}
	if v, err := strconv.ParseFloat(sf.Tag.Get("max"), 64); err == nil {
		hi = v
	}
	return lo, hi
}

func inBounds(v int64, text string, sf reflect.StructField) error {
	lo, lerr := strconv.ParseInt(sf.Tag.Get("min"), 10, 64)
	hi, herr := strconv.ParseInt(sf.Tag.Get("max"), 10, 64)
	if lerr == nil && v < lo || herr == nil && v > hi {
		return fmt.Errorf("%.60q: want a value%s", text, bounds(sf))
	}
	return nil
}
