{{/*
What the Job of `helm uninstall` may do in each namespace that an installation uses: namespace -> names of the rights below.
With them it has the rights of the Roles there, without which the API server would not let it mark them.
*/}}
{{- define "cri-resmgr-installer.rightsOfUninstall" -}}
{{- $places := dict -}}
{{- range list (include "cri-resmgr-installer.namespace" .) "kube-system" | uniq }}{{ $_ := set $places . (list "objects") }}{{ end -}}
{{- $more := list (list "default" "events") (list (include "cri-resmgr-installer.rolloutNamespace" .) "leases") -}}
{{- if include "cri-resmgr-installer.withAgent" . -}}
{{- $more = append $more (list (include "cri-resmgr-installer.agentNamespace" .) "agent") -}}
{{- end -}}
{{- range $more -}}
{{- $_ := set $places (first .) (append (get $places (first .) | default list) (last .)) -}}
{{- end -}}
{{- toYaml $places -}}
{{- end -}}

{{- define "cri-resmgr-installer.rights.objects" -}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, delete, get]
- apiGroups: [""]
  resources: [services]
  verbs: [delete]
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [create, delete, get]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# Of version 0.1.0.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [delete]
{{- end -}}

{{- define "cri-resmgr-installer.rights.events" -}}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "cri-resmgr-installer.rights.leases" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, delete, get, list, patch, update]
{{- end -}}

{{- define "cri-resmgr-installer.rights.agent" -}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [delete, get, list, watch]
- apiGroups: [criresmgr.intel.com]
  resources: [adjustments]
  verbs: [get, list, patch, watch]
{{- end -}}
