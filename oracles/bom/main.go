// Command bom reads a bill of materials from standard input and says what CycloneDX has against it: by the official
// JSON schema of version 1.5, and by the reference library, which has to be able to read it.
//
// The first argument is the directory with the schemas, which come with the module of the library.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bom SCHEMAS < DOCUMENT")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(schemas string) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	// Schemas name each other by their address; nothing is fetched.
	files := map[string]string{
		"bom-1.5.schema.json":  "bom-1.5.schema.json",
		"spdx.schema.json":     "spdx.schema.json",
		"jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	}
	for name, file := range files {
		file, err := os.Open(filepath.Join(schemas, file))
		if err != nil {
			return err
		}
		schema, err := jsonschema.UnmarshalJSON(file)
		if err != nil {
			return err
		}
		if err := compiler.AddResource("http://cyclonedx.org/schema/"+name, schema); err != nil {
			return err
		}
	}
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.5.schema.json")
	if err != nil {
		return err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if err := schema.Validate(document); err != nil {
		return err
	}
	var read cyclonedx.BOM
	decoder := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON)
	if err := decoder.Decode(&read); err != nil {
		return err
	}
	if read.Components == nil {
		return nil
	}
	for _, component := range *read.Components {
		fmt.Println(component.PackageURL)
	}
	return nil
}
