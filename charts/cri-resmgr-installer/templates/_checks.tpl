{{/* What is wrong only together with another value. `cri-resmgr-installer manifests --values` finds more. */}}
{{- define "cri-resmgr-installer.check" -}}
{{- $static := list "fallback" "force" "EXTRA_OPTIONS" -}}
{{- if eq (include "cri-resmgr-installer.mode" .) "install" -}}
{{- range $key, $text := .Values.configs -}}
{{- if and (not (has $key $static)) (not $.Values.agent.enabled) -}}
{{- fail (printf "configs.%s: reaches the nodes only through cri-resmgr-agent: set agent.enabled" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.agent.enabled (eq ((.Values.settings.proxy | default dict).agent | default "") "disabled") -}}
{{- fail "agent.enabled: must not be true while settings.proxy.agent is disabled" -}}
{{- end -}}
{{- if and .Values.agent.enabled (eq (include "cri-resmgr-installer.fullname" .) "cri-resmgr-agent") -}}
{{- fail "name: must not be the name of the agent's objects, which are beside the others" -}}
{{- end -}}
{{- if eq (include "cri-resmgr-installer.namespace" .) (include "cri-resmgr-installer.rolloutNamespace" .) -}}
{{- fail "namespace: must not be that of the permits, which has Roles of the same name" -}}
{{- end -}}
{{- range $key, $wanted := dict "kubernetes.io/os" "linux" "kubernetes.io/arch" .Values.arch -}}
{{- if ne (get $.Values.nodeSelector $key | default $wanted) $wanted -}}
{{- fail (printf "nodeSelector.%s: must be %s, or left out: the payload runs only there" $key $wanted) -}}
{{- end -}}
{{- end -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $node := .Values.affinity.nodeAffinity | default dict -}}
{{- if kindIs "map" (get $node $required) -}}
{{- $conditions := list -}}
{{- range (get $node $required).nodeSelectorTerms }}{{ $conditions = concat $conditions (.matchExpressions | default list) (.matchFields | default list) }}{{ end -}}
{{- if not $conditions -}}
{{- fail (printf "affinity.nodeAffinity.%s.nodeSelectorTerms: matches no node: a term without conditions never does" $required) -}}
{{- end -}}
{{- end -}}
{{- range list "name" "instance" "component" -}}
{{- if hasKey $.Values.labels (printf "app.kubernetes.io/%s" .) -}}
{{- fail (printf "labels.app.kubernetes.io/%s: is the installer's own; leave it out" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring (not (include "cri-resmgr-installer.metricsPort" .)) -}}
{{- fail "settings.status.listen: must be an address that Prometheus reaches, for monitoring, such as \":9464\"" -}}
{{- end -}}
{{- if and .Values.admissionPolicies (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail "admissionPolicies: must be false before Kubernetes 1.30, which does not know them; without a cluster, Helm assumes another version: --kube-version says which one it is" -}}
{{- end -}}
{{- if and .Values.hooks.uninstall (not .Values.hooks.image) -}}
{{- fail "hooks.image: must be set, or hooks.uninstall must be false: nodes are cleaned before the release is deleted" -}}
{{- end -}}
{{- end -}}
