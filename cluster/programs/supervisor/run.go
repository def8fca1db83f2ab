package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

type options struct {
	network   network
	name      string
	pidFile   string
	removeDir string
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
	err := makeCgroup(options.name)
	if err != nil {
		return errors.Join(err, clean(options))
	}
	if options.network.wanted() {
		err = runNamespaced(options, terminate)
	} else {
		supervise(os.Stdin, os.Stdout, terminate)
	}
	return errors.Join(err, clean(options))
}

// runNamespaced starts this program again as process 1 of new namespaces and stays outside as its keeper: what has to
// be cleaned up after the namespaces are gone can only be cleaned up from here.
func runNamespaced(options options, terminate <-chan os.Signal) error {
	waiting, connected, err := os.Pipe()
	if err != nil {
		return err
	}
	inside, err := os.StartProcess("/proc/self/exe", []string{insideName, options.network.String()}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, waiting},
		Env:   os.Environ(),
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
			Pdeathsig:  syscall.SIGKILL,
		},
	})
	if err != nil {
		return fmt.Errorf("cannot make PID, mount and network namespaces (needs root): %w", err)
	}
	waiting.Close()
	if err := options.network.connect(options.name, inside.Pid); err != nil {
		_ = inside.Kill()
		_, _ = inside.Wait()
		return fmt.Errorf("cannot link the network namespace to the machine: %w", err)
	}
	connected.Close()
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

func runInside(link string) error {
	var network network
	if err := network.Set(link); err != nil {
		return err
	}
	// Ends when the process outside has made the link, or has died.
	connected := os.NewFile(3, "connected")
	_, _ = connected.Read(make([]byte, 1))
	connected.Close()
	if err := network.configure(); err != nil {
		return fmt.Errorf("cannot set up the network namespace: %w", err)
	}
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
