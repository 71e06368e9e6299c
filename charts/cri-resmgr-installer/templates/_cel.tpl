{{/* Pieces of the expressions in admission.yaml. Objects are read as dynamic values, whatever fields they have. */}}

{{/* A field of a field: dict "owner" "object" "path" "metadata.labels" "missing" "{}" */}}
{{- define "cri-resmgr-installer.cel.part" -}}
{{- $at := .owner -}}
{{- $has := list -}}
{{- range splitList "." .path -}}
{{- $at = printf "%s.%s" $at . -}}
{{- $has = append $has (printf "has(%s)" $at) -}}
{{- end -}}
{{ join " && " $has }} ? dyn({{ $at }}) : dyn({{ .missing | default "{}" }})
{{- end -}}

{{/* Two variables: a part of the object, as requested and as it was. "guard" comes before the latter. */}}
{{- define "cri-resmgr-installer.cel.parts" -}}
{{- $now := dict "owner" "object" "path" .path "missing" .missing -}}
{{- $before := dict "owner" "oldObject" "path" .path "missing" .missing -}}
- name: {{ .name }}
  expression: {{ include "cri-resmgr-installer.cel.part" $now | toRawJson }}
- name: old{{ title .name }}
  expression: {{ printf "%s%s" (.guard | default "") (include "cri-resmgr-installer.cel.part" $before) | toRawJson }}
{{- end -}}

{{/* Whether the map of this variable is unchanged, except the keys of a list: list "labels" "['a', 'b']" */}}
{{- define "cri-resmgr-installer.cel.same" -}}
{{- $but := index . 1 -}}
{{- $now := printf "variables.%s" (index . 0) -}}
{{- $before := printf "variables.old%s" (title (index . 0)) -}}
{{ $now }}.all(key, key in {{ $but }} || (key in {{ $before }} && {{ $now }}[key] == {{ $before }}[key])) && {{ $before }}.all(key, key in {{ $but }} || key in {{ $now }})
{{- end -}}

{{/* The node of the pod that makes the request, by its token. */}}
{{- define "cri-resmgr-installer.cel.token" -}}
{{- range $variable, $claim := dict "nodeName" "node-name" "nodeUid" "node-uid" }}
- name: {{ $variable }}
  expression: {{ printf "has(request.userInfo.extra) && 'authentication.kubernetes.io/%s' in request.userInfo.extra ? request.userInfo.extra['authentication.kubernetes.io/%s'][0] : ''" $claim $claim | toRawJson }}
{{- end }}
{{- end -}}

{{- define "cri-resmgr-installer.cel.namesNode" -}}
- expression: variables.nodeName != '' && variables.nodeUid != ''
  message: "the token of this pod does not name its node: that needs Kubernetes 1.30 or later"
{{- end -}}

{{- define "cri-resmgr-installer.cel.ofOwnNode" -}}
- expression: object.metadata.name == variables.nodeName && object.metadata.uid == variables.nodeUid
  message: {{ . }} may write only its own Node
{{- end -}}
