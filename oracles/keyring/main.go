// Command keyring answers, line by line, which credentials the kubelet would try for an image, and in which order.
//
// A line asks with {"secrets":[{"type":"…","data":"<base64>"}],"images":["…"]}. The answer is {"error":"…"} or, per
// image, the list of [username, password] in the order of trial.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/credentialprovider"
)

type question struct {
	Secrets []struct {
		Type string `json:"type"`
		Data []byte `json:"data"`
	} `json:"secrets"`
	Images []string `json:"images"`
}

type answer struct {
	Error string        `json:"error,omitempty"`
	Found [][][2]string `json:"found,omitempty"`
}

func main() {
	// Entries that the kubelet ignores are the rule here, not worth a line each.
	klog.SetLogger(logr.Discard())
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriterSize(os.Stdout, 1<<20)
	answers := json.NewEncoder(output)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			break
		}
		var asked question
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(fmt.Sprintf("%v in %q", err, line))
		}
		if err := answers.Encode(lookup(asked)); err != nil {
			panic(err)
		}
	}
	if err := output.Flush(); err != nil {
		panic(err)
	}
}

func lookup(asked question) answer {
	keyring := &credentialprovider.BasicDockerKeyring{}
	for _, secret := range asked.Secrets {
		config, err := read(secret.Type, secret.Data)
		if err != nil {
			return answer{Error: err.Error()}
		}
		// One entry at a time: two entries of one configuration that stand for the same place are otherwise tried
		// in the random order of a Go map.
		for _, location := range slices.Sorted(maps.Keys(config)) {
			keyring.Add(nil, credentialprovider.DockerConfig{location: config[location]})
		}
	}
	found := make([][][2]string, 0, len(asked.Images))
	for _, image := range asked.Images {
		candidates, _ := keyring.Lookup(image)
		list := make([][2]string, 0, len(candidates))
		for _, candidate := range candidates {
			list = append(list, [2]string{candidate.Username, candidate.Password})
		}
		found = append(found, list)
	}
	return answer{Found: found}
}

// read decodes a Secret's payload as the kubelet does: an empty payload and a foreign type count as absent.
func read(kind string, data []byte) (credentialprovider.DockerConfig, error) {
	if len(data) == 0 {
		return nil, nil
	}
	switch kind {
	case "kubernetes.io/dockerconfigjson":
		var config credentialprovider.DockerConfigJSON
		err := json.Unmarshal(data, &config)
		return config.Auths, err
	case "kubernetes.io/dockercfg":
		var config credentialprovider.DockerConfig
		err := json.Unmarshal(data, &config)
		return config, err
	}
	return nil, nil
}
