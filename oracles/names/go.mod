module fairlead.dev/oracles/names

go 1.26.0

require (
	github.com/distribution/reference v0.6.0
	k8s.io/apimachinery v0.36.4
)

require (
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
	k8s.io/utils v0.0.0-20260210185600-b8788abfbbc2 // indirect
)
