package site

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/cfpipe/cfpipe/internal/av"
)

// private is what a site file takes from elsewhere because it is nobody's business: the values are shown nowhere, and processes of stages do not
// inherit the variables. They get what they need with their order.
type private struct {
	values    []string // of variables, and of files
	variables []string // names
}

// variable is one that a text of the file names.
type variable struct {
	name, value string
	at          int // in the text
}

// note keeps the variables of a field. What only says where to connect to is no secret.
func (p *private) note(raw string, vars []variable) {
	from, to := hostOf(raw)
	for _, v := range vars {
		p.variables = append(p.variables, v.name)
		if v.at < from || v.at >= to {
			p.values = append(p.values, v.value)
		}
	}
}

// hostOf is where host and port stand in a URL whose variables are not put in yet.
func hostOf(raw string) (from, to int) {
	from = strings.Index(raw, "://")
	if from < 0 {
		return 0, 0
	}
	from += len("://")
	to = len(raw)
	if i := strings.IndexAny(raw[from:], "/?#"); i >= 0 {
		to = from + i
	}
	if i := strings.LastIndexByte(raw[from:to], '@'); i >= 0 {
		from += i + 1
	}
	return from, to
}

// of are those of the values that a stage has to know.
func (p *private) of(print string) (values []string) {
	for _, v := range p.values {
		b, err := json.Marshal(v)
		if err == nil && strings.Contains(print, string(b[1:len(b)-1])) {
			values = append(values, v)
		}
	}
	return values
}

// environment is this process's without the variables.
func (p *private) environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(p.variables, name)
	})
}

// literalParameter says whether a query of a URL has a secret in clear, such as ?passphrase=x.
func literalParameter(raw string) bool {
	_, query, _ := strings.Cut(raw, "?")
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if value == "" || !av.NamesSecret(name) {
			continue
		}
		name, isVariable := strings.CutPrefix(value, "${")
		name, closed := strings.CutSuffix(name, "}")
		if !isVariable || !closed || !variableName(name) {
			return true
		}
	}
	return false
}
