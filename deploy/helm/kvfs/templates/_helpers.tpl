{{- define "kvfs.name" -}}
{{- if contains "kvfs" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-kvfs" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "kvfs.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: kvfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The labels of one of the two sets of pods. Its argument: the root, and "owner" or "csi". */ -}}
{{- define "kvfs.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: kvfs
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "kvfs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "kvfs.secret" -}}
{{ .Values.peers.secret.name | default (printf "%s-peers" (include "kvfs.name" .)) }}
{{- end }}

{{- /* The configuration of the owner: that of the user with that of the chart. */ -}}
{{- define "kvfs.config" -}}
{{- $peers := .Values.peers -}}
{{- $own := dict "version" 1 "http" (printf "0.0.0.0:%d" (int .Values.owner.httpPort)) "memory" (dict "size" .Values.owner.memorySize) -}}
{{- $dirs := list -}}
{{- range $i, $disk := .Values.owner.disks }}{{ $dirs = append $dirs (dict "path" (printf "/disk/%d" $i) "size" $disk.size) }}{{ end -}}
{{- if $dirs }}{{ $_ := set $own "disk" (dict "dirs" $dirs) }}{{ end -}}
{{- if $peers.enabled -}}
{{- $_ := set $own "bind" (printf "0.0.0.0:%d" (int $peers.port)) -}}
{{- $_ := set $own "join" (list (printf "%s.%s.svc:%d" (include "kvfs.name" .) .Release.Namespace (int $peers.port))) -}}
{{- $_ := set $own "replicas" (int $peers.replicas) -}}
{{- $peer := dict "control" (printf "0.0.0.0:%d" (int $peers.controlPort)) "bulk" (printf "0.0.0.0:%d" (int $peers.bulkPort)) -}}
{{- if $peers.insecure -}}
{{- $_ := set $own "insecure" true -}}
{{- else -}}
{{- $_ := set $peer "gossip_keys" "/etc/kvfs/peers/gossip.keys" -}}
{{- $_ := set $own "tls" (dict "ca" "/etc/kvfs/peers/ca.pem") -}}
{{- end -}}
{{- $_ := set $own "peer" $peer -}}
{{- end -}}
{{- $base := dict "memory" (dict "keep" true) -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.owner.config) $own) -}}
{{- end }}
