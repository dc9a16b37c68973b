package replay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestRecipes shows that the scripts in deploy/recipes are such, and what they would run: an owner, which kvfs
// takes, a mount of it, and the engine with all that it needs to use the mount. (B34, E19)
func TestRecipes(t *testing.T) {
	dir := filepath.Join(harness.Root(t), "deploy", "recipes")
	bin := t.TempDir()
	if err := os.Symlink(harness.Binary(t), filepath.Join(bin, "kvfs")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"kimi-k2.5-nvfp4.sh": {"engine: vllm\n", "\ncommand: vllm serve nvidia/Kimi-K2.5-NVFP4 ", "--tensor-parallel-size 4", "\"cpu_bytes_to_use\":17179869184"},
		"qwen3-8b-dp4.sh":    {"engine: vllm\n", "\ncommand: vllm serve Qwen/Qwen3-8B --config " + dir + "/mndp.yaml"},
		"with-owner.sh":      {"engine: none\n", "\ncommand: true\n"},
	} {
		t.Run(name, func(t *testing.T) {
			script := filepath.Join(dir, name)
			text, err := os.ReadFile(script)
			if err != nil {
				t.Fatal(err)
			}
			checkShell(t, name, string(text))
			args := []string{"--print", "--mount", "/mnt/kv"}
			if name == "with-owner.sh" {
				args = append(args, "--engine", "none", "--", "true")
			} else {
				want = append(want, "--kv-transfer-config", "/mnt/kv/vllm", "variable: PYTHONHASHSEED=0 ")
			}
			cmd := exec.Command(script, args...)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want = append(want, "owner: kvfs serve --ready-fd 3 --config "+dir+"/owner.yaml", "mount: kvfs mount --ready-fd 3 --mode=standalone-store -- /mnt/kv\n")
			for _, w := range want {
				if !strings.Contains(string(out), w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
			if strings.Contains(string(out), "skipped:") {
				t.Errorf("something is left out:\n%s", out)
			}
		})
	}
}
