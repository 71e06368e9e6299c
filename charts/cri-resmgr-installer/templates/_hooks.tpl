{{/* Not the labels by which `uninstall` finds what to delete: it would delete its own rights. */}}
{{- define "cri-resmgr-installer.hookLabels" -}}
{{- with omit .Values.labels "helm.sh/chart" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" }}{{ toYaml . }}
{{ end -}}
app.kubernetes.io/name: cri-resmgr-installer-hooks
app.kubernetes.io/instance: {{ include "cri-resmgr-installer.fullname" . | quote }}
{{ include "cri-resmgr-installer.chartLabels" . }}
{{- end -}}

{{- define "cri-resmgr-installer.hookAnnotations" -}}
{{- range $key, $value := .Values.annotations }}
{{- if not (or (hasPrefix "helm.sh/" $key) (hasPrefix "argocd.argoproj.io/" $key)) }}
{{- dict $key $value | toYaml }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* A failed one stays until the next, so that its log can be read. dict "root" . "weight" "0" */}}
{{- define "cri-resmgr-installer.uninstallHook" -}}
{{- include "cri-resmgr-installer.hookAnnotations" .root }}
{{- if eq (toString .root.Values.hooks.uninstall) "argocd" -}}
argocd.argoproj.io/hook: PreDelete
argocd.argoproj.io/sync-wave: {{ .weight | quote }}
argocd.argoproj.io/hook-delete-policy: BeforeHookCreation,HookSucceeded
{{- else -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
{{- end -}}

{{/* dict "root" . "weight" "0" */}}
{{- define "cri-resmgr-installer.testHook" -}}
{{- include "cri-resmgr-installer.hookAnnotations" .root -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* A pod that runs one command for a whole cluster: dict "root" . "command" (list "report"). */}}
{{- define "cri-resmgr-installer.hookPod" -}}
{{- $values := .root.Values -}}
automountServiceAccountToken: true
restartPolicy: Never
{{- with include "cri-resmgr-installer.pullSecrets" $values }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  kubernetes.io/arch: {{ $values.arch }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            {{- include "cri-resmgr-installer.onHosts" .root | nindent 12 }}
# Not every taint: a pod that tolerates a node that is going down would wait there for ever.
tolerations:
  - key: node-role.kubernetes.io/control-plane
    operator: Exists
  - key: cri-resource-manager.intel.com/not-ready
    operator: Exists
  {{- with $values.hooks.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
containers:
  - name: command
    image: {{ required "hooks.image: must be given: it has the commands for a whole cluster" $values.hooks.image | include "cri-resmgr-installer.image" | quote }}
    {{- with $values.imagePullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    command: [cri-resmgr-installer]
    args: {{ toRawJson .command }}
    resources:
      requests:
        cpu: 20m
        memory: 64Mi
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    volumeMounts:
      # The client's TLS library needs the certificate of the API server in a file.
      - name: tmp
        mountPath: /tmp
volumes:
  - name: tmp
    emptyDir:
      medium: Memory
      sizeLimit: 16Mi
{{- end -}}
