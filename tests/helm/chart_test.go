// Package helm tests the Helm chart: it renders deploy/helm/kvfs with several sets of values, decodes every object
// strictly with the types of Kubernetes, and has kvfs itself check what the chart gives it. It is a module of its own
// for Helm and these types; `make test-all` runs it.
package helm

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const chartDir = "../../deploy/helm/kvfs"

// sets are the values with which the chart is rendered.
var sets = map[string]string{
	"defaults": ``,
	"secret": `
peers: {enabled: true, replicas: 1, secret: {name: kvfs-peers}}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
owner: {disks: [{hostPath: /mnt/nvme0/kvfs, size: 800GiB}, {hostPath: /mnt/nvme1/kvfs, size: 800GiB}]}`,
	"files": `
peers: {enabled: true, secret: {files: {gossip.keys: abc, ca.pem: def, gpu-1.pem: ghi, gpu-1-key.pem: jkl}}}
image: {repository: registry.example.com/ai/kvfs, tag: 1.2.3}
imagePullSecrets: [{name: registry}]
csi: {tag: 1.2.2}`,
	"insecure": `
peers: {enabled: true, insecure: true, port: 17946}
owner:
  hostNetwork: true
  memorySize: 512GiB
  config:
    memory: {policy: s3fifo, keep: false}
    groups: {pool: {pinned: true, quota: 16GiB}}
    disk: {cascade: on_evict}
  resources: {requests: {cpu: "2", memory: 1Gi}, limits: {memory: 600Gi}}
  nodeSelector: {gpu: "true"}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}]}]}}}
  priorityClassName: system-node-critical
  podAnnotations: {example.com/a: b}
  updateStrategy: {type: OnDelete}
csi: {kubeletDir: /var/lib/k0s/kubelet, resources: {limits: {memory: 256Mi}}, registrar: {resources: {limits: {memory: 64Mi}}}, updateStrategy: {type: OnDelete}}`,
	"without csi": `csi: {enabled: false}`,
}

// objects are the rendered ones, by kind and name.
type objects map[string]any

// render renders the chart as Helm does and decodes the objects.
func render(t *testing.T, release, values string) (objects, error) {
	t.Helper()
	c, err := loader.Load(chartDir)
	must(t, err)
	given, err := chartutil.ReadValues([]byte(values))
	must(t, err)
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	to, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: release, Namespace: "inference", IsInstall: true}, caps)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(c, to)
	if err != nil {
		return nil, err
	}
	all := objects{}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			if !strings.Contains(text, "kvfs status") {
				t.Errorf("notes: %s", text)
			}
			continue
		}
		decode(t, name, text, all)
	}
	return all, nil
}

// decode adds the objects in text to all. It refuses what the types of Kubernetes do not have.
func decode(t *testing.T, file, text string, all objects) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var head struct {
			Kind, APIVersion string
			Metadata         struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%s: %v\n%s", file, err, doc)
		}
		if head.Kind == "" {
			continue // a template that is switched off
		}
		types := map[string]any{
			"v1 ConfigMap": &core.ConfigMap{}, "v1 Secret": &core.Secret{}, "v1 Service": &core.Service{}, "v1 Pod": &core.Pod{},
			"v1 PersistentVolume": &core.PersistentVolume{}, "v1 PersistentVolumeClaim": &core.PersistentVolumeClaim{},
			"apps/v1 DaemonSet": &apps.DaemonSet{}, "storage.k8s.io/v1 CSIDriver": &storage.CSIDriver{},
			"monitoring.coreos.com/v1 ServiceMonitor": &monitoring.ServiceMonitor{},
		}
		object := types[head.APIVersion+" "+head.Kind]
		if object == nil {
			t.Fatalf("%s: unknown %s %s", file, head.APIVersion, head.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
			t.Errorf("%s: %s %s: %v\n%s", file, head.Kind, head.Metadata.Name, err, doc)
		}
		if bad := validation.IsDNS1123Subdomain(head.Metadata.Name); len(bad) > 0 || len(head.Metadata.Name) > 63 {
			t.Errorf("%s: name %q: %q", file, head.Metadata.Name, bad)
		}
		all[head.Kind+" "+head.Metadata.Name] = object
	}
}

// TestChart renders the chart with each set of values. Every object is one of Kubernetes, the parts fit together, and
// kvfs knows all that it is given.
func TestChart(t *testing.T) {
	for name, values := range sets {
		for _, release := range []string{"cache", "kvfs", strings.Repeat("a-very-long-name-", 3)} {
			t.Run(name+"/"+release, func(t *testing.T) {
				all, err := render(t, release, values)
				must(t, err)
				for kind, object := range all {
					if set, ok := object.(*apps.DaemonSet); ok {
						checkPods(t, kind, set)
						checkKvfs(t, set, all)
					}
					if service, ok := object.(*core.Service); ok {
						checkService(t, service, all)
					}
				}
				if _, with := all["CSIDriver csi.kvfs.io"]; with != (name != "without csi") {
					t.Errorf("objects %q", slices.Sorted(maps.Keys(all)))
				}
				if _, with := all["ServiceMonitor kvfs"]; release == "kvfs" && with != (name == "secret") {
					t.Errorf("objects %q", slices.Sorted(maps.Keys(all)))
				}
			})
		}
	}
}

// checkPods checks the references within the pods of a set, and rules of the API server that the types do not have.
func checkPods(t *testing.T, kind string, set *apps.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	for k, v := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[k] != v {
			t.Errorf("%s: the selector wants %s=%s, the pods have %q", kind, k, v, set.Spec.Template.Labels)
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			t.Errorf("%s: two volumes %s", kind, v.Name)
		}
		volumes[v.Name] = true
	}
	used := map[string]bool{}
	for _, c := range pod.Containers {
		ports := map[string]bool{}
		for _, p := range c.Ports {
			if bad := validation.IsValidPortName(p.Name); len(bad) > 0 || ports[p.Name] {
				t.Errorf("%s: port %s: %q", kind, p.Name, bad)
			}
			ports[p.Name] = true
		}
		for _, probe := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && !ports[probe.HTTPGet.Port.StrVal] {
				t.Errorf("%s: a probe asks port %s", kind, probe.HTTPGet.Port.StrVal)
			}
		}
		for _, m := range c.VolumeMounts {
			used[m.Name] = true
			if !volumes[m.Name] || !filepath.IsAbs(m.MountPath) {
				t.Errorf("%s: %s mounts %s, which is no volume, at %s", kind, c.Name, m.Name, m.MountPath)
			}
			privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
			if m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationBidirectional && !privileged {
				t.Errorf("%s: %s shares mounts without the privilege", kind, c.Name)
			}
		}
	}
	if !maps.Equal(volumes, used) {
		t.Errorf("%s: volumes %v, used %v", kind, volumes, used)
	}
}

// checkService checks that a service leads to the ports of the owner.
func checkService(t *testing.T, s *core.Service, all objects) {
	t.Helper()
	set := all["DaemonSet "+s.Name].(*apps.DaemonSet)
	if !maps.Equal(s.Spec.Selector, set.Spec.Selector.MatchLabels) {
		t.Errorf("service of %v, owners are %v", s.Spec.Selector, set.Spec.Selector.MatchLabels)
	}
	for _, p := range s.Spec.Ports {
		if !slices.ContainsFunc(set.Spec.Template.Spec.Containers[0].Ports, func(c core.ContainerPort) bool {
			return c.Name == p.TargetPort.StrVal && c.ContainerPort == p.Port
		}) {
			t.Errorf("service port %+v leads nowhere", p)
		}
	}
	if m, ok := all["ServiceMonitor "+s.Name].(*monitoring.ServiceMonitor); ok {
		for k, v := range m.Spec.Selector.MatchLabels {
			if s.Labels[k] != v {
				t.Errorf("the monitor wants %s=%s, the service has %v", k, v, s.Labels)
			}
		}
		if !slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }) {
			t.Errorf("the monitor asks port %s", m.Spec.Endpoints[0].Port)
		}
	}
}

// variable is $(NAME) in an argument or a variable, which Kubernetes replaces.
var variable = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// checkKvfs has kvfs check the command line, the variables and the configuration of its container.
func checkKvfs(t *testing.T, set *apps.DaemonSet, all objects) {
	t.Helper()
	c := set.Spec.Template.Spec.Containers[0]
	values := map[string]string{}
	env := []string{"PATH=" + os.Getenv("PATH")}
	expand := func(s string) string {
		return variable.ReplaceAllStringFunc(s, func(ref string) string {
			v, ok := values[ref[2:len(ref)-1]]
			if !ok {
				t.Errorf("%s: %s is not set before", set.Name, ref)
			}
			return v
		})
	}
	for _, e := range c.Env {
		value := expand(e.Value)
		if e.ValueFrom != nil {
			value = map[string]string{"spec.nodeName": "gpu-1", "status.podIP": "10.0.0.1"}[e.ValueFrom.FieldRef.FieldPath]
		}
		values[e.Name] = value
		env = append(env, e.Name+"="+value)
	}
	var args []string
	for _, a := range c.Args {
		args = append(args, expand(a))
	}
	run(t, env, append(args, "--help")...) // which comes after the errors about what is before it
	config := all["ConfigMap "+set.Name]
	if args[0] != "serve" {
		return
	}
	if !slices.Contains(args, "--config=/etc/kvfs/kvfs.yaml") {
		t.Errorf("arguments %q", args)
	}
	file := filepath.Join(t.TempDir(), "kvfs.yaml")
	must(t, os.WriteFile(file, []byte(config.(*core.ConfigMap).Data["kvfs.yaml"]), 0o644))
	run(t, env, "config", "check", "--elsewhere", file)
	for _, dir := range regexp.MustCompile(`/(disk|etc/kvfs/peers)(/\d+)?`).FindAllString(config.(*core.ConfigMap).Data["kvfs.yaml"], -1) {
		dir = strings.TrimSuffix(dir, "/")
		if !slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == dir }) {
			t.Errorf("%s is in the configuration, and nothing is mounted there", dir)
		}
	}
}

func run(t *testing.T, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command(harness.Binary(t), args...)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q kvfs %q: %v\n%s", env[1:], args, err, out)
	}
}

// TestExamples decodes the examples, and compares their driver with that of the chart.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../deploy/helm/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	all := objects{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		decode(t, file, string(text), all)
	}
	drivers := []string{all["PersistentVolume kvfs"].(*core.PersistentVolume).Spec.CSI.Driver}
	for _, v := range all["Pod engine"].(*core.Pod).Spec.Volumes {
		drivers = append(drivers, v.CSI.Driver)
	}
	source, err := os.ReadFile("../../cmd/kvfs/csi/server.go")
	must(t, err)
	for _, d := range drivers {
		if !strings.Contains(string(source), fmt.Sprintf("const Name = %q", d)) {
			t.Errorf("driver %s is not that of kvfs csi", d)
		}
	}
}

// TestValues shows that wrong values are refused, with the name of the value.
func TestValues(t *testing.T) {
	for values, want := range map[string]string{
		`owner: {memory: 64GiB}`:                      "memory",
		`owner: {memorySize: 64Gi}`:                   "memorySize",
		`owner: {config: {memory: {size: 1GiB}}}`:     "memory",
		`owner: {config: {http: ":1"}}`:               "config",
		`owner: {disks: [{hostPath: x, size: 1GiB}]}`: "hostPath",
		`owner: {disks: [{hostPath: /x}]}`:            "size",
		`peers: {enabled: true}`:                      "keys and certificates",
		`peers: {secret: {files: {ca-key.pem: x}}}`:   "files",
		`peers: {port: 0}`:                            "port",
		`csi: {ephemeralProfile: none}`:               "ephemeralProfile",
		`csi: {kubeletDir: var/lib}`:                  "kubeletDir",
		`serviceMonitor: {interval: often}`:           "interval",
		`nodeSelector: {}`:                            "nodeSelector",
	} {
		if _, err := render(t, "cache", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", values, err, want)
		}
	}
}

// TestLint runs helm lint.
func TestLint(t *testing.T) {
	for _, m := range lint.AllWithKubeVersion(chartDir, nil, "inference", &chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}).Messages {
		if m.Severity >= support.WarningSev {
			t.Errorf("%v", m)
		}
	}
}

// TestImage shows that the chart has the version of the newest release and the image of make dist.
func TestImage(t *testing.T) {
	c, err := loader.Load(chartDir)
	must(t, err)
	changes, err1 := os.ReadFile("../../CHANGELOG.md")
	dist, err2 := os.ReadFile("../../.ci/dist")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	version := regexp.MustCompile(`(?m)^## \[(\d[^]]*)\]`).FindStringSubmatch(string(changes))[1]
	if c.Metadata.AppVersion != version || c.Metadata.Version != version {
		t.Errorf("chart %s of kvfs %s, the newest is %s", c.Metadata.Version, c.Metadata.AppVersion, version)
	}
	name := c.Values["image"].(map[string]any)["repository"]
	if !strings.Contains(string(dist), fmt.Sprintf(`"oci-archive:$2:%s:$version"`, name)) {
		t.Errorf("make dist makes no image %s", name)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
