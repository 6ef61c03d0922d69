package mux

import (
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Files describes the names that a Pattern gives.
type Files struct {
	Dir string // the folder below which all of them lie: the pattern up to its first conversion
	re  *regexp.Regexp
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
			literal(p.key)
			rest = rest[len("key}"):]
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
