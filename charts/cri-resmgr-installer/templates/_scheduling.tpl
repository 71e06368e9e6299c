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

{{/* Not on a node that is no machine: no pod of ours can run there, whatever it tolerates. */}}
{{- define "cri-resmgr-installer.onHosts" -}}
- {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}
- {key: type, operator: NotIn, values: [virtual-kubelet]}
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
{{- $ours := list -}}
{{- if not .Values.controlPlane -}}
{{- range list "node-role.kubernetes.io/control-plane" "node-role.kubernetes.io/master" -}}
{{- $ours = append $ours (dict "key" . "operator" "DoesNotExist") -}}
{{- end -}}
{{- end -}}
{{- $ours = concat $ours (include "cri-resmgr-installer.onHosts" . | fromYamlArray) -}}
{{- $names := .Values.nodes | uniq | sortAlpha | default (list "") -}}
{{- $terms := list -}}
{{- range $term := $given -}}
{{- range $name := $names -}}
{{- $expressions := concat ($term.matchExpressions | default list) $ours -}}
{{- $fields := $term.matchFields | default list -}}
{{- if $name -}}
{{- $fields = append $fields (dict "key" "metadata.name" "operator" "In" "values" (list $name)) -}}
{{- end -}}
{{- $both := dict -}}
{{- if $expressions }}{{ $_ := set $both "matchExpressions" $expressions }}{{ end -}}
{{- if $fields }}{{ $_ := set $both "matchFields" $fields }}{{ end -}}
{{- $terms = append $terms $both -}}
{{- end -}}
{{- end -}}
{{- $_ := set $node $required (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- toYaml $affinity -}}
{{- end -}}
