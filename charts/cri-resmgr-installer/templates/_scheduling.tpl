{{/* The payload's platform, Gardener's label on its clusters, and what the values ask for. */}}
{{- define "cri-resmgr-installer.nodeSelector" -}}
{{- $selector := deepCopy .Values.nodeSelector -}}
{{- $gardeners := "worker.gardener.cloud/cri-name" -}}
{{- if and .Values.gardener (not (hasKey $selector $gardeners)) -}}
{{- $_ := set $selector $gardeners .Values.criName -}}
{{- end -}}
{{- $_ := set $selector "kubernetes.io/os" "linux" -}}
{{- $_ := set $selector "kubernetes.io/arch" .Values.arch -}}
{{- toYaml $selector -}}
{{- end -}}

{{/*
The affinity of the values, with our conditions in every required term, because terms are alternatives. A term without
conditions matches no node. A condition on a node's name takes one name only, so each node has a term of its own.
*/}}
{{- define "cri-resmgr-installer.affinity" -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $given := list -}}
{{- range (get $node $required | default dict).nodeSelectorTerms -}}
{{- if or .matchExpressions .matchFields }}{{ $given = append $given . }}{{ end -}}
{{- end -}}
{{- if not $given }}{{ $given = list dict }}{{ end -}}
{{- $notControlPlane := list -}}
{{- if not .Values.controlPlane -}}
{{- range list "node-role.kubernetes.io/control-plane" "node-role.kubernetes.io/master" -}}
{{- $notControlPlane = append $notControlPlane (dict "key" . "operator" "DoesNotExist") -}}
{{- end -}}
{{- end -}}
{{- $names := .Values.nodes | uniq | sortAlpha | default (list "") -}}
{{- $terms := list -}}
{{- range $term := $given -}}
{{- range $name := $names -}}
{{- $expressions := concat ($term.matchExpressions | default list) $notControlPlane -}}
{{- $fields := $term.matchFields | default list -}}
{{- if $name -}}
{{- $fields = append $fields (dict "key" "metadata.name" "operator" "In" "values" (list $name)) -}}
{{- end -}}
{{- $both := dict -}}
{{- if $expressions }}{{ $_ := set $both "matchExpressions" $expressions }}{{ end -}}
{{- if $fields }}{{ $_ := set $both "matchFields" $fields }}{{ end -}}
{{- if $both }}{{ $terms = append $terms $both }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if $terms }}{{ $_ := set $node $required (dict "nodeSelectorTerms" $terms) }}{{ end -}}
{{- if $node }}{{ $_ := set $affinity "nodeAffinity" $node }}{{ end -}}
{{- if $affinity }}{{ toYaml $affinity }}{{ end -}}
{{- end -}}
