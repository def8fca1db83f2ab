// Parent of everything a test cluster runs, so that nothing outlives the test, however the test ends.
//
//	supervisor run [--namespaces HOST,NODE,SERVICES --name NAME] [--pid-file FILE] [--remove DIR]
//	supervisor stop --pid-file FILE [--name NAME] [--remove DIR]
//
// `run` takes commands on standard input, one JSON object per line (see protocol.go), and ends when standard input
// closes, which the kernel does for a caller that was killed. With --namespaces (root only) the parts live in their own
// PID, mount and network namespaces: when the supervisor ends, the kernel ends every process in there, containers and
// their shims included, and drops every mount, network device and packet filter. Without it each part is tied to the
// supervisor by its parent-death signal.
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
		exit(runInside(os.Args[1]))
	}
	if len(os.Args) < 2 {
		exit(fmt.Errorf("usage: supervisor run|stop [flags]"))
	}
	flags := flag.NewFlagSet("supervisor "+os.Args[1], flag.ExitOnError)
	var options options
	flags.Var(&options.network, "namespaces", "own PID, mount and network namespaces for the parts, reached by a link")
	flags.StringVar(&options.name, "name", "", "name of the link and of a control group for the parts, both removed at the end")
	flags.StringVar(&options.pidFile, "pid-file", "", "holds the process id, and is locked while the supervisor lives")
	flags.StringVar(&options.removeDir, "remove", "", "remove this directory at the end")
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
