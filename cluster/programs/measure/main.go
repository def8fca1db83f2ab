// Runs a program and says, as its last line on standard output, what it cost.
//
//	measure PROGRAM [ARG...]
//
// The kernel counts a parent's memory as its child's until the child has begun, so the measuring program must be
// smaller than the measured one. This program is.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

type cost struct {
	WallNanoseconds int64 `json:"wall_ns"`
	CPUNanoseconds  int64 `json:"cpu_ns"`
	PeakBytes       int64 `json:"peak_bytes"`
	Code            int   `json:"code"`
}

func main() {
	if len(os.Args) < 2 {
		fail("usage: measure PROGRAM [ARG...]")
	}
	// The program ends when this thread does, which is bound to live as long as the process.
	runtime.LockOSThread()
	command := exec.Command(os.Args[1], os.Args[2:]...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := time.Now()
	// A failure of the program is a result; a program that did not run is not.
	if err := command.Run(); command.ProcessState == nil {
		fail(err.Error())
	}
	wall := time.Since(started)
	state := command.ProcessState
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		fail("this system does not say what a process used")
	}
	line, err := json.Marshal(cost{
		WallNanoseconds: wall.Nanoseconds(),
		CPUNanoseconds:  (state.UserTime() + state.SystemTime()).Nanoseconds(),
		PeakBytes:       usage.Maxrss * 1024,
		Code:            state.ExitCode(),
	})
	if err != nil {
		fail(err.Error())
	}
	fmt.Printf("\n%s\n", line)
}

func fail(reason string) {
	fmt.Fprintln(os.Stderr, reason)
	os.Exit(1)
}
