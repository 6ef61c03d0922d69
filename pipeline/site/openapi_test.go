package site

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/retention"
)

// openAPI is docs/openapi.yaml, as far as answers are held against it.
type openAPI struct {
	Paths map[string]map[string]struct {
		Responses map[string]map[string]any
	}
	Components struct {
		Schemas   map[string]map[string]any
		Responses map[string]map[string]any
	}
}

func readOpenAPI(t *testing.T) *openAPI {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "openapi.yaml"))
	require.NoError(t, err)
	var doc openAPI
	require.NoError(t, yaml.Unmarshal(b, &doc))
	return &doc
}

// require holds an answer in JSON against the document.
func (d *openAPI) require(t *testing.T, path, method string, status int, body []byte) {
	t.Helper()
	response, ok := d.Paths[path][method].Responses[fmt.Sprint(status)]
	require.True(t, ok, "%s %d is not in the document", path, status)
	if ref, ok := response["$ref"].(string); ok {
		response = d.Components.Responses[strings.TrimPrefix(ref, "#/components/responses/")]
	}
	schema := response["content"].(map[string]any)["application/json"].(map[string]any)["schema"].(map[string]any)
	var v any
	require.NoError(t, json.Unmarshal(body, &v), "%s", body)
	require.Empty(t, d.check(schema, v, path), "%s", body)
}

func (d *openAPI) resolve(schema map[string]any) map[string]any {
	if ref, ok := schema["$ref"].(string); ok {
		return d.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
	}
	return schema
}

// check returns what of v the schema does not know, and what is of another type than it says.
func (d *openAPI) check(schema map[string]any, v any, at string) (wrong []string) {
	schema = d.resolve(schema)
	if either, ok := schema["oneOf"].([]any); ok {
		for _, s := range either {
			if wrong = d.check(s.(map[string]any), v, at); len(wrong) == 0 {
				return nil
			}
		}
		return wrong
	}
	if want, ok := schema["const"]; ok && want != v {
		return []string{fmt.Sprintf("%s: %v, want %v", at, v, want)}
	}
	if among, ok := schema["enum"].([]any); ok && !slices.Contains(among, v) {
		return []string{fmt.Sprintf("%s: %v is none of %v", at, v, among)}
	}
	types, ok := schema["type"].([]any)
	if one, single := schema["type"].(string); single {
		types, ok = []any{one}, true
	}
	if got := typeOf(v); ok && !slices.Contains(types, any(got)) && (got != "integer" || !slices.Contains(types, any("number"))) {
		return []string{fmt.Sprintf("%s: is %s, want %v", at, got, types)}
	}
	switch v := v.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for name, field := range v {
			if p, ok := properties[name].(map[string]any); ok {
				wrong = append(wrong, d.check(p, field, at+"."+name)...)
			} else {
				wrong = append(wrong, at+"."+name+": is not in the document")
			}
		}
	case []any:
		items, _ := schema["items"].(map[string]any)
		for _, item := range v {
			wrong = append(wrong, d.check(items, item, at+"[]")...)
		}
	}
	return wrong
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	}
	return "object"
}

// The OpenAPI document names the paths that there are, and no others.
func TestOpenAPI(t *testing.T) {
	doc := readOpenAPI(t)
	s := &Site{config: defaultConfig(), keeper: retention.New(retention.Options{}), runtimeDir: t.TempDir()}
	s.turned.Store(time.Now().UnixNano())
	handler := s.handler(testToken, newDoor())
	require.Len(t, doc.Paths, 11)
	for path, methods := range doc.Paths {
		require.Len(t, methods, 1)
		for method, m := range methods {
			named := strings.NewReplacer("{key}", "nope", "{file}", "nope.jpg", "{name}", "nope.mp4").Replace(path)
			r := httptest.NewRequest(strings.ToUpper(method), named, nil)
			for _, authorized := range []bool{false, true} {
				if authorized {
					r.Header.Set("Authorization", "Bearer "+testToken)
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				require.Contains(t, m.Responses, fmt.Sprint(w.Code), path)
				require.Equal(t, authorized, w.Code != 401)
				if strings.Contains(path, "{") && authorized && !strings.HasPrefix(path, "/recordings") {
					require.Contains(t, w.Body.String(), "no such camera")
				}
				if path != "/metrics" || w.Code != 200 {
					doc.require(t, path, method, w.Code, w.Body.Bytes())
				}
			}
		}
	}
}

// The document and a status in which nothing is zero have the same fields, and the status comes back whole.
func TestStatusIsDocumented(t *testing.T) {
	status := Status{Stages: []StageStatus{{}}}
	fill(reflect.ValueOf(&status).Elem())
	s := &status.Stages[0]
	s.Kind, s.State = kindIngest, StateRunning
	b, err := json.Marshal(status)
	require.NoError(t, err)
	doc := readOpenAPI(t)
	doc.require(t, "/status", "get", 200, b)

	var v any
	require.NoError(t, json.Unmarshal(b, &v))
	require.Empty(t, doc.missing(map[string]any{"$ref": "#/components/schemas/Status"}, v, "status"), "%s", b)
	var back Status
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, status, back)
	require.Equal(t, 1.5, back.Stages[0].Record.Busy.Seconds())
}

// missing returns the fields of the schema that v does not have.
func (d *openAPI) missing(schema map[string]any, v any, at string) (names []string) {
	schema = d.resolve(schema)
	switch v := v.(type) {
	case map[string]any:
		for name, p := range schema["properties"].(map[string]any) {
			if field, ok := v[name]; ok {
				names = append(names, d.missing(p.(map[string]any), field, at+"."+name)...)
			} else {
				names = append(names, at+"."+name)
			}
		}
	case []any:
		names = d.missing(schema["items"].(map[string]any), v[0], at+"[]")
	}
	return names
}

// fill sets every field under v to something that is not its zero value.
func fill(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Date(2026, 11, 30, 12, 0, 0, 5, time.UTC)
		return
	case *pipeline.Seconds:
		*x = pipeline.Seconds(1500 * time.Millisecond)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(7)
	default:
		v.SetUint(7)
	}
}
