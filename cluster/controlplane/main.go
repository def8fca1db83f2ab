// The control plane, the kubelet, kube-proxy and kubectl as one program that looks at the name it was called by.
// One program instead of seven shares the linked Kubernetes libraries: a seventh of the disk and of the link time.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	roles := map[string]func() int{
		"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
		"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
		"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
		"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
		"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
		"kubectl":                 func() int { return runKubectl(kubectl.NewDefaultKubectlCommand()) },
	}
	role := filepath.Base(os.Args[0])
	if run, known := roles[role]; known {
		os.Exit(run())
	}
	names := make([]string, 0, len(roles))
	for name := range roles {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintf(os.Stderr, "called as %q; link this program under one of these names: %s\n", role, strings.Join(names, ", "))
	os.Exit(2)
}

func runKubectl(command *cobra.Command) int {
	if err := cli.RunNoErrOutput(command); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
