package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// clean removes what the kernel does not.
func clean(options options) error {
	return errors.Join(removeLink(options.name), removeCgroup(options.name), removeDirectory(options.removeDir))
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
		return nil // no process holds it
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
