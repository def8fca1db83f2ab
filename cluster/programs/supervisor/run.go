package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

type options struct {
	namespaces bool
	pidFile    string
	removeDir  string
	cgroupsOf  string
}

func run(options options) error {
	// A session of its own: Ctrl-C in a terminal reaches the caller first, and the parts only through its death.
	// An error says that this is a session leader already, which is as good.
	_, _ = syscall.Setsid()
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM, syscall.SIGINT)
	if options.pidFile != "" {
		lock, err := lockPidFile(options.pidFile)
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	var err error
	if options.namespaces {
		err = runNamespaced(terminate)
	} else {
		supervise(os.Stdin, os.Stdout, terminate)
	}
	return errors.Join(err, clean(options))
}

// runNamespaced starts this program again as process 1 of new namespaces and stays outside as its keeper: what has to be
// cleaned up after the namespaces are gone can only be cleaned up from here.
func runNamespaced(terminate <-chan os.Signal) error {
	inside, err := os.StartProcess("/proc/self/exe", []string{insideName}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Env:   os.Environ(),
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
			Pdeathsig:  syscall.SIGKILL,
		},
	})
	if err != nil {
		return fmt.Errorf("cannot make PID and mount namespaces (needs root): %w", err)
	}
	// The process inside must be the only holder of the pipes, so that their ends are seen at once.
	os.Stdin.Close()
	os.Stdout.Close()
	go func() {
		<-terminate
		_ = inside.Kill()
	}()
	state, err := inside.Wait()
	if err != nil {
		return err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Exited() && status.ExitStatus() != 0 {
		return fmt.Errorf("ended with status %d inside its namespaces", status.ExitStatus())
	}
	return nil
}

func runInside() error {
	// Mounts made by parts must not reach the outside, whatever propagation the machine has set up.
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot mount /proc of the new PID namespace: %w", err)
	}
	if err := shadowHost(); err != nil {
		return err
	}
	supervise(os.Stdin, os.Stdout, nil)
	return nil
}
