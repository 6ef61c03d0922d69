package site

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of site files, for editors.
func Schema() []byte {
	root := objectSchema(reflect.TypeFor[Config]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "cfpipe site"
	root["required"] = []string{"cameras"}
	root["patternProperties"] = map[string]any{"^x-": map[string]any{"description": "A place for anchors; not read."}}
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // plain values
	}
	return append(b, '\n')
}

func objectSchema(t reflect.Type) map[string]any {
	properties := map[string]any{}
	addProperties(t, properties)
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func addProperties(t reflect.Type, properties map[string]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		switch name := f.Tag.Get("yaml"); name {
		case "":
		case ",inline":
			addProperties(f.Type, properties)
		default:
			p := fieldSchema(f)
			if doc := f.Tag.Get("doc"); doc != "" {
				p["description"] = doc
			}
			properties[name] = p
		}
	}
}

// A value may come from the environment.
const variablePattern = `\$\{[A-Za-z_][A-Za-z0-9_]*\}`

func fieldSchema(f reflect.StructField) map[string]any {
	p := map[string]any{}
	variable := map[string]any{"type": "string", "pattern": variablePattern}
	switch t := f.Type; {
	case t == reflect.TypeFor[Duration]():
		p["type"], p["pattern"] = "string", `^([0-9]+(d|w)|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+|0|.*`+variablePattern+`.*)$`
	case t == reflect.TypeFor[Size]():
		p["type"], p["pattern"] = []string{"string", "integer"}, `^([0-9]+ *([kKMGT]i?B?|B)?|.*`+variablePattern+`.*)$`
	case t.Kind() == reflect.Pointer:
		return map[string]any{"anyOf": []any{objectSchema(t.Elem()), map[string]any{"enum": []any{"off", false, nil}}}}
	case t.Kind() == reflect.Struct:
		return objectSchema(t)
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "propertyNames": map[string]any{"pattern": "^[A-Za-z0-9_-]{1,63}$"},
			"additionalProperties": objectSchema(t.Elem().Elem())}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	case t.Kind() == reflect.Bool:
		return map[string]any{"anyOf": []any{map[string]any{"type": "boolean"}, variable}}
	case t.Kind() == reflect.Float64:
		number := map[string]any{"type": "number"}
		if f.Tag.Get("min") != "" {
			number["minimum"], number["maximum"] = floatBounds(f)
		}
		return map[string]any{"anyOf": []any{number, variable}}
	case t.Kind() == reflect.Int:
		number := map[string]any{"type": "integer"}
		if v, err := strconv.Atoi(f.Tag.Get("min")); err == nil {
			number["minimum"] = v
		}
		if v, err := strconv.Atoi(f.Tag.Get("max")); err == nil {
			number["maximum"] = v
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			var list []any
			for s := range strings.SplitSeq(enum, "|") {
				n, _ := strconv.Atoi(s)
				list = append(list, n)
			}
			number["enum"] = list
		}
		return map[string]any{"anyOf": []any{number, variable}}
	default:
		p["type"] = "string"
		if enum := f.Tag.Get("enum"); enum != "" {
			// off is a word in YAML 1.2 and a boolean in YAML 1.1, which editors may follow.
			list := []any{}
			for s := range strings.SplitSeq(enum, "|") {
				list = append(list, s)
				if s == "off" {
					list = append(list, false)
				}
			}
			return map[string]any{"anyOf": []any{map[string]any{"enum": list}, variable}}
		}
		if f.Tag.Get("secret") != "" {
			p["pattern"] = "^(" + variablePattern + ")+$"
		}
	}
	return p
}
