{{/*
The name of all objects: the value `name`, else the release's name, which contains that of the chart. With the
suffixes that are appended, it must still fit into a label; a namespace's name has no dots, as a release's may.
*/}}
{{- define "cri-resmgr-installer.fullname" -}}
{{- if .Values.name -}}
{{- .Values.name -}}
{{- else -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- regexReplaceAll "-+$" ($name | replace "." "-" | trunc 52) "" -}}
{{- end -}}
{{- end -}}

{{/* The references to the Secrets of registries, of names and of objects with one. */}}
{{- define "cri-resmgr-installer.pullSecrets" -}}
{{- $names := list -}}
{{- range .imagePullSecrets -}}
{{- if kindIs "map" . }}{{ $names = append $names .name }}{{ else }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- range $names | uniq | sortAlpha }}
- name: {{ . | quote }}
{{- end -}}
{{- end -}}

{{/* The reference of an image that is given as one, or in parts. */}}
{{- define "cri-resmgr-installer.image" -}}
{{- if kindIs "map" . -}}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "cri-resmgr-installer.namespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* The namespace where nodes coordinate their restarts of kubelet. */}}
{{- define "cri-resmgr-installer.rolloutNamespace" -}}
{{- include "cri-resmgr-installer.fullname" . }}-rollout
{{- end -}}

{{/* The namespace where the agent reads every ConfigMap. */}}
{{- define "cri-resmgr-installer.agentNamespace" -}}
{{- .Values.agent.namespace | default (printf "%s-agent" (include "cri-resmgr-installer.fullname" .)) -}}
{{- end -}}

{{- define "cri-resmgr-installer.mode" -}}
{{- .Values.settings.mode | default "install" -}}
{{- end -}}

{{/* Empty unless the agent is installed. */}}
{{- define "cri-resmgr-installer.withAgent" -}}
{{- if and .Values.agent.enabled (eq (include "cri-resmgr-installer.mode" .) "install") }}true{{ end -}}
{{- end -}}

{{/* Empty unless a pod writes its Node: by default only where the API server restricts it to its own. */}}
{{- define "cri-resmgr-installer.writesNode" -}}
{{- if kindIs "bool" .Values.annotateNode -}}
{{- if .Values.annotateNode }}true{{ end -}}
{{- else if .Values.admissionPolicies }}true{{ end -}}
{{- end -}}

{{/*
Without `labels`: a DaemonSet's selector can never be changed. Not the chart's name, which is another one under an alias:
`report` and `uninstall` find what is ours by the first label.
*/}}
{{- define "cri-resmgr-installer.selectorLabels" -}}
app.kubernetes.io/name: cri-resmgr-installer
app.kubernetes.io/instance: {{ include "cri-resmgr-installer.fullname" . | quote }}
{{- end -}}

{{- define "cri-resmgr-installer.agentSelectorLabels" -}}
app.kubernetes.io/name: cri-resmgr-agent
app.kubernetes.io/instance: {{ include "cri-resmgr-installer.fullname" . | quote }}
{{- end -}}

{{/* The usual labels of a chart; never on pods, which a new version of the chart alone would replace. */}}
{{- define "cri-resmgr-installer.chartLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "cri-resmgr-installer.labels" -}}
{{- with omit .Values.labels "helm.sh/chart" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" }}{{ toYaml . }}
{{ end -}}
{{ include "cri-resmgr-installer.selectorLabels" . }}
{{ include "cri-resmgr-installer.chartLabels" . }}
{{- end -}}

{{- define "cri-resmgr-installer.agentLabels" -}}
{{- with omit .Values.labels "helm.sh/chart" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" }}{{ toYaml . }}
{{ end -}}
{{ include "cri-resmgr-installer.agentSelectorLabels" . }}
{{- if .Values.gardener }}
gardener.cloud/role: system-component
{{- end }}
{{ include "cri-resmgr-installer.chartLabels" . }}
{{- end -}}

{{/* For objects that must outlast the cleaning of the nodes: with them, the nodes can still clean themselves. */}}
{{- define "cri-resmgr-installer.keptAnnotations" -}}
{{- with omit .Values.annotations "helm.sh/resource-policy" }}{{ toYaml . }}
{{ end -}}
helm.sh/resource-policy: keep
{{- end -}}

{{/* The pods' configuration is named by its content, so that a new configuration is a new pod template. */}}
{{- define "cri-resmgr-installer.settingsData" -}}
settings.yaml: {{ include "cri-resmgr-installer.settings" . | quote }}
{{- end -}}

{{/* With the agent of this chart, its sockets are not beside the relay, unless the settings say so. */}}
{{- define "cri-resmgr-installer.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- range $key, $default := dict "apiVersion" "cri-resmgr-installer/v1" "mode" "install" -}}
{{- if not (get $settings $key) }}{{ $_ := set $settings $key $default }}{{ end -}}
{{- end -}}
{{- $proxy := $settings.proxy | default dict -}}
{{- if and .Values.agent.enabled (ne ($proxy.agent | default "enabled") "disabled") -}}
{{- if not $proxy.agentSockets }}{{ $_ := set $proxy "agentSockets" "own" }}{{ end -}}
{{- $_ := set $settings "proxy" $proxy -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "cri-resmgr-installer.settingsName" -}}
{{- $data := include "cri-resmgr-installer.settingsData" . -}}
{{- printf "%s-settings-%s" (include "cri-resmgr-installer.fullname" .) ($data | sha256sum | trunc 10) -}}
{{- end -}}

{{/* The configs that pods start from; a removal needs none. */}}
{{- define "cri-resmgr-installer.configsData" -}}
{{- if eq (include "cri-resmgr-installer.mode" .) "install" -}}
{{- $files := dict "fallback" "fallback.cfg" "force" "force.cfg" "EXTRA_OPTIONS" "EXTRA_OPTIONS.cfg" -}}
{{- $data := dict -}}
{{- range $key, $text := .Values.configs -}}
{{- if hasKey $files $key }}{{ $_ := set $data (get $files $key) $text }}{{ end -}}
{{- end -}}
{{- if $data }}{{ toYaml $data }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "cri-resmgr-installer.configsName" -}}
{{- $data := include "cri-resmgr-installer.configsData" . -}}
{{- printf "%s-configs-%s" (include "cri-resmgr-installer.fullname" .) ($data | sha256sum | trunc 10) -}}
{{- end -}}

{{/* Empty, or the port where others can scrape the pods. A removal's pod runs beside one that has it. */}}
{{- define "cri-resmgr-installer.metricsPort" -}}
{{- $listen := (.Values.settings.status | default dict).listen | default "" -}}
{{- $loopback := regexMatch "^(localhost|\\[::1\\]|127\\..*):" $listen -}}
{{- if and $listen (not $loopback) (eq (include "cri-resmgr-installer.mode" .) "install") -}}
{{- regexFind "[0-9]+$" $listen -}}
{{- end -}}
{{- end -}}
