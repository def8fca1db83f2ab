// Parent of everything a test cluster runs, so that nothing outlives the test, however the test ends.
//
//	supervisor run [--namespaces] [--pid-file FILE] [--remove DIR] [--remove-cgroups-of DIR]
//	supervisor stop --pid-file FILE [--remove DIR] [--remove-cgroups-of DIR]
//
// `run` takes commands on standard input, one JSON object per line (see protocol.go), and ends when standard input
// closes, which the kernel does for a caller that was killed. With --namespaces (root only) the parts live in their own
// PID and mount namespaces: when the supervisor ends, the kernel ends every process in there, containers and their shims
// included, and drops every mount. Without it each part is tied to the supervisor by its parent-death signal.
//
// `stop` ends a supervisor that was told to outlive its caller, known by the file it holds a lock on, and makes up for
// the cleaning that one could not do if it was killed.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
)

// The re-executed process 1 of the new namespaces is told apart by this name.
const insideName = "supervisor-inside"

func init() {
	// A parent-death signal fires when the parent's *thread* ends. Parts are started from the main goroutine only,
	// and pinning it to the main thread makes that thread live as long as the process.
	runtime.LockOSThread()
}

func main() {
	if os.Args[0] == insideName {
		exit(runInside())
	}
	if len(os.Args) < 2 {
		exit(fmt.Errorf("usage: supervisor run|stop [flags]"))
	}
	flags := flag.NewFlagSet("supervisor "+os.Args[1], flag.ExitOnError)
	var options options
	flags.BoolVar(&options.namespaces, "namespaces", false, "give the parts PID and mount namespaces of their own")
	flags.StringVar(&options.pidFile, "pid-file", "", "holds the process id, and is locked while the supervisor lives")
	flags.StringVar(&options.removeDir, "remove", "", "remove this directory at the end")
	flags.StringVar(&options.cgroupsOf, "remove-cgroups-of", "", "remove control groups of the containers that have a directory in here at the end")
	_ = flags.Parse(os.Args[2:])
	switch os.Args[1] {
	case "run":
		exit(run(options))
	case "stop":
		exit(stop(options))
	default:
		exit(fmt.Errorf("unknown command %q: use run or stop", os.Args[1]))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
