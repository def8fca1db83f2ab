module fairlead.dev/oracles/bom

go 1.26.0

require (
	github.com/CycloneDX/cyclonedx-go v0.9.3
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
)

require golang.org/x/text v0.14.0 // indirect
