// A container that succeeds at once: proof that an image was pulled, unpacked and run.
package main

func main() {}
