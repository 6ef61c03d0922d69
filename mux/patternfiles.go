package mux

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Files describes the names that a Pattern gives.
type Files struct {
	Dir string         // the folder below which all of them lie: the pattern up to its first conversion
	re  *regexp.Regexp // of FilesOfAnyKey with a group for each %{key}
}

// anyKey is what stands in a name for the key of any camera, as framering.CheckKey takes it.
const anyKey = `([a-zA-Z0-9_-]{1,63})`

// FilesOfAnyKey describes the names that a pattern gives for all keys: KeyOf tells which. ok is false where the pattern has no %{key}, or is none.
func FilesOfAnyKey(text string) (f Files, ok bool) {
	p, err := ParsePattern(text, "")
	if err != nil {
		return Files{}, false
	}
	f = p.Files()
	return f, f.re.NumSubexp() > 0
}

// KeyOf is the key in the name of a file that a pattern of FilesOfAnyKey can have made; "" = it cannot.
func (f Files) KeyOf(path string) string {
	keys := f.re.FindStringSubmatch(path)
	if len(keys) < 2 || slices.ContainsFunc(keys[1:], func(k string) bool { return k != keys[1] }) {
		return ""
	}
	return keys[1]
}

// Name is the name of a file that begins at t, where nothing else has it already.
func (p *Pattern) Name(t time.Time) string {
	s, _ := p.expand(t.Local()) // checked by ParsePattern
	return s
}

// digits and words that conversions expand to.
var conversionExpressions = map[byte]string{
	'Y': `[0-9]{4}`, 'm': `[0-9]{2}`, 'd': `[0-9]{2}`, 'H': `[0-9]{2}`, 'M': `[0-9]{2}`, 'S': `[0-9]{2}`, 'y': `[0-9]{2}`, 'I': `[0-9]{2}`,
	'p': `(?:AM|PM)`, 'b': `[A-Z][a-z]{2}`, 'B': `[A-Z][a-z]{2,8}`, 'a': `[A-Z][a-z]{2}`, 'A': `[A-Z][a-z]{5,8}`, 'j': `[0-9]{3}`,
	'z': `[+-][0-9]{4}`, 'Z': `[A-Z0-9+-]{1,6}`, 'e': `[ 0-9][0-9]`, 'F': `[0-9]{4}-[0-9]{2}-[0-9]{2}`, 'T': `[0-9]{2}:[0-9]{2}:[0-9]{2}`,
	'R': `[0-9]{2}:[0-9]{2}`, 'D': `[0-9]{2}/[0-9]{2}/[0-9]{2}`, 's': `-?[0-9]+`, 'f': `[0-9]{3}`,
}

// Files returns what is needed to find the pattern's files again.
func (p *Pattern) Files() Files {
	var re, fixed strings.Builder
	isFixed := true
	literal := func(s string) {
		re.WriteString(regexp.QuoteMeta(s))
		if isFixed {
			fixed.WriteString(s)
		}
	}
	for rest := p.clean(); rest != ""; {
		i := strings.IndexByte(rest, '%')
		if i < 0 || i == len(rest)-1 {
			literal(rest)
			break
		}
		literal(rest[:i])
		c := rest[i+1]
		rest = rest[i+2:]
		switch c {
		case '%':
			literal("%")
		case '{':
			rest = rest[len("key}"):]
			if p.key == "" {
				isFixed = false
				re.WriteString(anyKey)
				continue
			}
			literal(p.key)
		default:
			isFixed = false
			re.WriteString(conversionExpressions[c])
		}
	}
	// The number of a name that was taken stands in front of the extension.
	text := re.String()
	ext := regexp.QuoteMeta(filepath.Ext(p.text))
	if strings.ContainsRune(ext, '%') {
		ext = ""
	}
	text = strings.TrimSuffix(text, ext) + `(?:-[1-9][0-9]{0,5})?` + ext
	return Files{Dir: filepath.Dir(fixed.String() + "x"), re: regexp.MustCompile(`\A` + text + `\z`)}
}

// clean is the pattern as file systems give names back. Conversions hold no dots and no doubled slashes.
func (p *Pattern) clean() string { return filepath.Clean(p.text) }

// Match says whether the pattern can have made a file of this name.
func (f Files) Match(path string) bool { return f.re.MatchString(path) }
