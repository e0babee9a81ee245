// Package section is a critical section around a plain file: 19 digits and the letter of the side that
// wrote last.
package section

import (
	"bufio"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

// Work is the task of a process.
type Work struct {
	URL, Name string
	file      *os.File
	sections  int
}

// FromArguments reads URL, NAME, FILE and SECTIONS.
func FromArguments() Work {
	file, err := os.OpenFile(os.Args[3], os.O_RDWR, 0)
	Must(err)
	sections, err := strconv.Atoi(os.Args[4])
	Must(err)
	return Work{URL: os.Args[1], Name: os.Args[2], file: file, sections: sections}
}

// Must ends the program if there is an error.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Run reports that it is ready, waits for the start signal, and runs all sections; locked runs one under the lock.
func (w Work) Run(module string, locked func(count func())) {
	fmt.Println("ready", version(module))
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	Must(err)
	turns := 0
	for range w.sections {
		locked(func() { turns += w.count() })
		// Lets the others in.
		time.Sleep(time.Duration(rand.Int64N(int64(4 * time.Millisecond))))
	}
	fmt.Println("done", w.sections, turns)
}

// count reads the number, pauses, writes it plus one; it returns 1 if the other side wrote last.
func (w Work) count() int {
	seen := make([]byte, 20)
	_, err := w.file.ReadAt(seen, 0)
	Must(err)
	time.Sleep(500 * time.Microsecond)
	number, err := strconv.ParseUint(string(seen[:19]), 10, 64)
	Must(err)
	_, err = w.file.WriteAt(fmt.Appendf(nil, "%019dt", number+1), 0)
	Must(err)
	if seen[19] == 'o' {
		return 1
	}
	return 0
}

// version is the version of the module that this program was built with.
func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version
		}
	}
	return "?"
}
