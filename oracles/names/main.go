// Command names answers, line by line, what the reference implementations make of a text: image references
// (distribution/reference), label selectors (apimachinery), regular expressions and path functions (Go's library).
//
// The first argument names the function. Every input line is one JSON value, every output line one JSON value.
package main

import (
	"bufio"
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"unicode"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/labels"
)

func main() {
	functions := map[string]func([]byte) any{
		"reference": parseReference,
		"selector":  matchSelector,
		"regex":     matchRegex,
		"glob":      matchGlob,
		"join":      joinPath,
		"classes":   unicodeClasses,
	}
	if len(os.Args) != 2 || functions[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: names reference|selector|regex|glob|join|classes")
		os.Exit(2)
	}
	function := functions[os.Args[1]]
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriterSize(os.Stdout, 1<<20)
	answers := json.NewEncoder(output)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			break
		}
		if err := answers.Encode(function(line)); err != nil {
			panic(err)
		}
	}
	if err := output.Flush(); err != nil {
		panic(err)
	}
}

func decode[T any](line []byte) T {
	var question T
	if err := json.Unmarshal(line, &question); err != nil {
		panic(fmt.Sprintf("%v in %q", err, line))
	}
	return question
}

type referenceAnswer struct {
	Error    string `json:"error,omitempty"`
	Text     string `json:"text,omitempty"`
	Domain   string `json:"domain,omitempty"`
	Path     string `json:"path,omitempty"`
	Tag      string `json:"tag,omitempty"`
	Digest   string `json:"digest,omitempty"`
	Familiar string `json:"familiar,omitempty"`
	Pull     string `json:"pull,omitempty"`
	Any      string `json:"any,omitempty"`
}

func parseReference(line []byte) any {
	text := decode[string](line)
	var answer referenceAnswer
	if any, err := reference.ParseAnyReference(text); err == nil {
		answer.Any = any.String()
	}
	named, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	answer.Text = named.String()
	answer.Domain = reference.Domain(named)
	answer.Path = reference.Path(named)
	answer.Familiar = reference.FamiliarString(named)
	if tagged, ok := named.(reference.Tagged); ok {
		answer.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		answer.Digest = digested.Digest().String()
	}
	if pull, err := reference.ParseDockerRef(text); err == nil {
		answer.Pull = pull.String()
	}
	return answer
}

type selectorAnswer struct {
	Error string `json:"error,omitempty"`
	Match []bool `json:"match,omitempty"`
}

func matchSelector(line []byte) any {
	question := decode[struct {
		Selector string              `json:"selector"`
		Sets     []map[string]string `json:"sets"`
	}](line)
	selector, err := labels.Parse(question.Selector)
	if err != nil {
		return selectorAnswer{Error: err.Error()}
	}
	var answer selectorAnswer
	for _, set := range question.Sets {
		answer.Match = append(answer.Match, selector.Matches(labels.Set(set)))
	}
	return answer
}

// matchRegex compiles the text alone first, because that is the rule that is being checked: a text that only
// compiles once it is wrapped is refused.
func matchRegex(line []byte) any {
	question := decode[struct {
		Pattern string   `json:"pattern"`
		Texts   []string `json:"texts"`
	}](line)
	if _, err := regexp.Compile(question.Pattern); err != nil {
		return selectorAnswer{Error: err.Error()}
	}
	anchored, err := regexp.Compile("^(?:" + question.Pattern + ")$")
	if err != nil {
		// A quotation that was left open would swallow the anchor.
		anchored, err = regexp.Compile("^(?:" + question.Pattern + `\E)$`)
	}
	if err != nil {
		return selectorAnswer{Error: err.Error()}
	}
	var answer selectorAnswer
	for _, text := range question.Texts {
		answer.Match = append(answer.Match, anchored.MatchString(text))
	}
	return answer
}

func matchGlob(line []byte) any {
	question := decode[[2]string](line)
	matched, err := filepath.Match(question[0], question[1])
	return matched && err == nil
}

func joinPath(line []byte) any {
	return path.Join(decode[[]string](line)...)
}

// unicodeClasses answers every class name that Go's regexp knows, whatever the question.
func unicodeClasses([]byte) any {
	var names []string
	for name := range unicode.Categories {
		names = append(names, name)
	}
	for name := range unicode.CategoryAliases {
		names = append(names, name)
	}
	for name := range unicode.Scripts {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
