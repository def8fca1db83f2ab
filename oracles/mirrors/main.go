// Command mirrors answers, line by line, what the reference implementations make of mirror policies: how objects are
// merged into entries (openshift/runtime-utils), and which places a reader of registries.conf asks for an image, in
// order (sysregistriesv2 of go.podman.io/image, which CRI-O, podman and skopeo share).
//
// The first argument names the function. Every input line is one JSON value, every output line one JSON value.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	merged "github.com/containers/image/v5/pkg/sysregistriesv2"
	configv1 "github.com/openshift/api/config/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	"github.com/openshift/runtime-utils/pkg/registries"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
)

func main() {
	functions := map[string]func([]byte) any{
		"merge": merge,
		"time":  timeMerge,
		"order": order,
	}
	if len(os.Args) != 2 || functions[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: mirrors merge|time|order")
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

// policies is one object of each kind, with all sets of that kind: the merge does not look at whose set it is.
type policies struct {
	Contents []set    `json:"contents"`
	Digests  []set    `json:"digests"`
	Tags     []set    `json:"tags"`
	Insecure []string `json:"insecure"`
	Blocked  []string `json:"blocked"`
}

type set struct {
	Source  string   `json:"source"`
	Mirrors []string `json:"mirrors"`
	Never   bool     `json:"never"`
}

func (s set) policy() configv1.MirrorSourcePolicy {
	if s.Never {
		return configv1.NeverContactSource
	}
	return ""
}

func (s set) mirrors() []configv1.ImageMirror {
	mirrors := make([]configv1.ImageMirror, 0, len(s.Mirrors))
	for _, mirror := range s.Mirrors {
		mirrors = append(mirrors, configv1.ImageMirror(mirror))
	}
	return mirrors
}

type entry struct {
	Scope    string   `json:"scope"`
	Blocked  bool     `json:"blocked"`
	Insecure bool     `json:"insecure"`
	Digest   []mirror `json:"digest"`
	Tag      []mirror `json:"tag"`
}

type mirror struct {
	Location string `json:"location"`
	Insecure bool   `json:"insecure"`
}

type mergeAnswer struct {
	Error   string  `json:"error"`
	Entries []entry `json:"entries"`
}

func merge(line []byte) any {
	config, err := edit(decode[policies](line))
	if err != nil {
		return mergeAnswer{Error: err.Error()}
	}
	answer := mergeAnswer{Entries: []entry{}}
	for _, registry := range config.Registries {
		one := entry{Scope: registry.Prefix, Blocked: registry.Blocked, Insecure: registry.Insecure}
		one.Digest, one.Tag = []mirror{}, []mirror{}
		if one.Scope == "" {
			one.Scope = registry.Location
		}
		for _, endpoint := range registry.Mirrors {
			found := mirror{Location: endpoint.Location, Insecure: endpoint.Insecure}
			if endpoint.PullFromMirror == merged.MirrorByDigestOnly {
				one.Digest = append(one.Digest, found)
			} else {
				one.Tag = append(one.Tag, found)
			}
		}
		answer.Entries = append(answer.Entries, one)
	}
	return answer
}

func edit(given policies) (*merged.V2RegistriesConf, error) {
	content := &operatorv1alpha1.ImageContentSourcePolicy{}
	for _, set := range given.Contents {
		content.Spec.RepositoryDigestMirrors = append(content.Spec.RepositoryDigestMirrors,
			operatorv1alpha1.RepositoryDigestMirrors{Source: set.Source, Mirrors: set.Mirrors})
	}
	digest := &configv1.ImageDigestMirrorSet{}
	for _, set := range given.Digests {
		digest.Spec.ImageDigestMirrors = append(digest.Spec.ImageDigestMirrors,
			configv1.ImageDigestMirrors{Source: set.Source, Mirrors: set.mirrors(), MirrorSourcePolicy: set.policy()})
	}
	tag := &configv1.ImageTagMirrorSet{}
	for _, set := range given.Tags {
		tag.Spec.ImageTagMirrors = append(tag.Spec.ImageTagMirrors,
			configv1.ImageTagMirrors{Source: set.Source, Mirrors: set.mirrors(), MirrorSourcePolicy: set.policy()})
	}
	config := &merged.V2RegistriesConf{}
	err := registries.EditRegistriesConfig(config, given.Insecure, given.Blocked,
		[]*operatorv1alpha1.ImageContentSourcePolicy{content},
		[]*configv1.ImageDigestMirrorSet{digest}, []*configv1.ImageTagMirrorSet{tag})
	return config, err
}

// timeMerge says how many nanoseconds one merge takes, without reading the question.
func timeMerge(line []byte) any {
	given := decode[policies](line)
	begun := time.Now()
	if _, err := edit(given); err != nil {
		panic(err)
	}
	return time.Since(begun).Nanoseconds()
}

type orderQuestion struct {
	File   string   `json:"file"`
	Images []string `json:"images"`
}

type place struct {
	Image    string `json:"image"`
	Insecure bool   `json:"insecure"`
	Blocked  bool   `json:"blocked"`
}

type orderAnswer struct {
	Error  string  `json:"error"`
	Places []place `json:"places"`
}

func order(line []byte) any {
	question := decode[orderQuestion](line)
	directory, err := os.MkdirTemp("", "mirrors")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "registries.conf")
	if err := os.WriteFile(path, []byte(question.File), 0o600); err != nil {
		panic(err)
	}
	sysregistriesv2.InvalidateCache()
	system := &types.SystemContext{
		SystemRegistriesConfPath:    path,
		SystemRegistriesConfDirPath: filepath.Join(directory, "none"),
	}
	answers := []orderAnswer{}
	for _, image := range question.Images {
		places, err := placesOf(system, image)
		if err != nil {
			answers = append(answers, orderAnswer{Error: err.Error()})
			continue
		}
		answers = append(answers, orderAnswer{Places: places})
	}
	return answers
}

func placesOf(system *types.SystemContext, image string) ([]place, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, err
	}
	registry, err := sysregistriesv2.FindRegistry(system, named.Name())
	if err != nil {
		return nil, err
	}
	if registry == nil {
		return []place{{Image: named.String()}}, nil
	}
	sources, err := registry.PullSourcesFromReference(named)
	if err != nil {
		return nil, err
	}
	places := []place{}
	for _, source := range sources {
		// A runtime looks every place up again before contacting it.
		physical, err := sysregistriesv2.FindRegistry(system, source.Reference.Name())
		if err != nil {
			return nil, err
		}
		places = append(places, place{
			Image:    source.Reference.String(),
			Insecure: source.Endpoint.Insecure,
			Blocked:  physical != nil && physical.Blocked,
		})
	}
	return places, nil
}
