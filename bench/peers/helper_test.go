// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// testPeer compiles the program once per machine. Without MPI the test is skipped, or fails where everything is required.
func testPeer(t *testing.T) *Program {
	t.Helper()
	for _, tool := range []string{"mpicc", "mpirun"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("RAILBOND_TEST_REQUIRE") == "1" {
				t.Fatalf("RAILBOND_TEST_REQUIRE=1 and %v", err)
			}
			t.Skipf("needs Open MPI with its compiler wrapper: %v", err)
		}
	}
	p, err := Build(testContext(t), BuildOptions{Dir: filepath.Join(os.TempDir(), "railbond-peers-test")})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// testRouting writes a file whose ranks have the given numbers of tokens, interleaved, with masked lanes, weights of both
// signs, a comment and a blank line.
func testRouting(t *testing.T, tokens []int, topk, experts int) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(len(tokens))))
	var b strings.Builder
	fmt.Fprintf(&b, "railbond-routing 1 ranks=%d topk=%d experts=%d\n# made by a test\n\n", len(tokens), topk, experts)
	for token, more := 0, true; more; token++ {
		more = false
		for rank, n := range tokens {
			if token < n {
				more = true
				b.WriteString(testToken(rng, rank, topk, experts))
			}
		}
	}
	return writeFile(t, "routing.txt", b.String())
}

func testToken(rng *rand.Rand, rank, topk, experts int) string {
	line := fmt.Sprint(rank)
	for _, e := range rng.Perm(experts)[:topk] {
		if rng.IntN(5) == 0 {
			e = -1
		}
		line += fmt.Sprint(" ", e)
	}
	line += " |"
	for range topk {
		line += fmt.Sprintf(" %.5f", rng.NormFloat64())
	}
	return line + "\n"
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
