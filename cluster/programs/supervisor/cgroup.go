package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	cgroupFileSystem   = "/sys/fs/cgroup"
	unifiedControllers = "cgroup.controllers"
)

// cgroupsNamed are the directories of a control group: one in each hierarchy of version 1, or the one of version 2.
func cgroupsNamed(name string) ([]string, error) {
	if isUnified() {
		return []string{filepath.Join(cgroupFileSystem, name)}, nil
	}
	hierarchies, err := filepath.Glob(filepath.Join(cgroupFileSystem, "*", "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, hierarchy := range hierarchies {
		paths = append(paths, filepath.Join(filepath.Dir(hierarchy), name))
	}
	return paths, nil
}

func isUnified() bool {
	_, err := os.Stat(filepath.Join(cgroupFileSystem, unifiedControllers))
	return err == nil
}

// makeCgroup makes the group below which the kubelet keeps those of its Pods. Control groups are in a file system that
// all namespaces share, so each cluster needs a name of its own.
func makeCgroup(name string) error {
	if name == "" {
		return nil
	}
	paths, err := cgroupsNamed(name)
	if err != nil {
		return err
	}
	if isUnified() {
		if err := delegateControllers(); err != nil {
			return err
		}
	}
	for _, path := range paths {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make a control group (needs root): %w", err)
		}
	}
	return nil
}

// delegateControllers lets groups below the root of version 2 use every controller, as systemd does where it runs.
func delegateControllers() error {
	controllers, err := os.ReadFile(filepath.Join(cgroupFileSystem, unifiedControllers))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(controllers)) {
		control := filepath.Join(cgroupFileSystem, "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("cannot delegate the controller %s of control groups: %w", controller, err)
		}
	}
	return nil
}

// removeCgroup removes the group with all below it. They do not go away with the processes in them.
func removeCgroup(name string) error {
	if name == "" {
		return nil
	}
	paths, err := cgroupsNamed(name)
	if err != nil {
		return err
	}
	return insist(func() error {
		var failed error
		for _, path := range paths {
			failed = errors.Join(failed, removeCgroupTree(path))
		}
		return failed
	})
}

func removeCgroupTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroupTree(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	// The files within belong to the kernel and go with the directory.
	return syscall.Rmdir(path)
}
