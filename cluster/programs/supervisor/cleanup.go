package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long removal is tried: what the kernel is still taking down keeps directories busy for a moment.
const removalDeadline = 5 * time.Second

// lockPidFile writes the process id to the file and keeps it locked: whether the supervisor lives is asked of the lock,
// never of the number, which another process may carry by now.
func lockPidFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%s is held by another supervisor", path)
	}
	if err := file.Truncate(0); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(file, os.Getpid())
	return file, err
}

// clean removes what the kernel does not. The directory comes last: it says which control groups there were.
func clean(options options) error {
	return errors.Join(removeCgroups(options.cgroupsOf), removeDirectory(options.removeDir))
}

func stop(options options) error {
	if err := stopHolder(options.pidFile); err != nil {
		return err
	}
	return clean(options)
}

func stopHolder(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return nil // nobody holds it
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("%s does not hold a process id: %w", path, err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("cannot end the supervisor, process %d: %w", pid, err)
	}
	// The lock is free when everything is over, removals included.
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
}

func removeDirectory(path string) error {
	if path == "" {
		return nil
	}
	return insist(func() error { return os.RemoveAll(path) })
}

// removeCgroups removes the control groups of containers that containerd knew at the end; the directory is its state of
// them, one entry per container. Control groups are in a file system that all namespaces share, so they do not go away
// with the processes in them.
func removeCgroups(containers string) error {
	if containers == "" {
		return nil
	}
	entries, err := os.ReadDir(containers)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The parent carries the name of containerd's namespace, as the directory does. In version 1 there is one in each hierarchy.
	parent := filepath.Base(containers)
	parents, err := filepath.Glob("/sys/fs/cgroup/*/" + parent)
	if err != nil {
		return err
	}
	parents = append(parents, "/sys/fs/cgroup/"+parent)
	err = insist(func() error {
		var failed error
		for _, parent := range parents {
			for _, entry := range entries {
				failed = errors.Join(failed, removeCgroup(filepath.Join(parent, entry.Name())))
			}
		}
		return failed
	})
	for _, parent := range parents {
		// Fails while somebody else has containers in there, as it should.
		_ = syscall.Rmdir(parent)
	}
	return err
}

func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	// The files within belong to the kernel and go with the directory.
	return syscall.Rmdir(path)
}

func insist(attempt func() error) error {
	deadline := time.Now().Add(removalDeadline)
	for {
		err := attempt()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
