{{/*
The pods' probes. A probe never ends work that is still within its deadlines. Times are in seconds; the defaults are
those of the settings.
*/}}
{{- define "cri-resmgr-installer.settleSeconds" -}}
{{- (.Values.settings.kubelet | default dict).settleSeconds | default 10 | int -}}
{{- end -}}

{{/* A job of systemd may take 30 s beyond what its unit bounds; a started proxy has to stay up for 2 s. */}}
{{- define "cri-resmgr-installer.proxySeconds" -}}
{{- add 32 ((.Values.settings.proxy | default dict).startTimeoutSeconds | default 20 | int) -}}
{{- end -}}

{{/* The longest that one pass may take: a daemon-reload (180 s), the proxy, kubelet, and a rollback (30 s). */}}
{{- define "cri-resmgr-installer.passSeconds" -}}
{{- $kubelet := .Values.settings.kubelet | default dict -}}
{{- $guard := $kubelet.guardSeconds | default 15 | int -}}
{{- $start := $kubelet.startTimeoutSeconds | default 60 | int -}}
{{- $settle := include "cri-resmgr-installer.settleSeconds" . | int -}}
{{- add 180 (include "cri-resmgr-installer.proxySeconds" . | int) $guard $start 30 $settle 30 -}}
{{- end -}}

{{/* The longest that the proxy's unit may be inactive on a healthy node. */}}
{{- define "cri-resmgr-installer.absentSeconds" -}}
{{- $dead := (.Values.settings.proxy | default dict).deadSeconds | default 5 | int -}}
{{- $restart := add $dead (include "cri-resmgr-installer.proxySeconds" . | int) 30 -}}
{{- max (include "cri-resmgr-installer.passSeconds" . | int) $restart -}}
{{- end -}}

{{/* The daemon touches its file every 5 s. A probe fails only for what a restart of the container could fix. */}}
{{- define "cri-resmgr-installer.alive" -}}
{{- $fresh := `test -n "$(find /run/cri-resmgr-installer/alive -newermt '-60 seconds')"` -}}
{{- $excused := "test -e /host/var/lib/cri-resmgr-installer/hold || test -e /run/cri-resmgr-installer/excused" -}}
{{- $status := "exec chroot /host systemctl status -n0 cri-resource-manager.service" -}}
exec:
  command:
    - /bin/sh
    - -c
    - {{ printf "%s || exit 1; %s || %s" $fresh $excused $status | toRawJson }}
periodSeconds: 10
timeoutSeconds: 10
failureThreshold: {{ add 1 (ceil (divf . 10)) }}
{{- end -}}

{{/* A removal is never restarted. */}}
{{- define "cri-resmgr-installer.probes" -}}
{{- if eq (include "cri-resmgr-installer.mode" .) "install" -}}
startupProbe:
  {{- include "cri-resmgr-installer.alive" (add 60 (include "cri-resmgr-installer.passSeconds" . | int)) | nindent 2 }}
livenessProbe:
  {{- include "cri-resmgr-installer.alive" (include "cri-resmgr-installer.absentSeconds" . | int) | nindent 2 }}
{{ end -}}
{{- $fresh := `test -n "$(find /run/cri-resmgr-installer/ready -newermt '-60 seconds' 2>/dev/null)"` -}}
readinessProbe:
  exec:
    command:
      - /bin/sh
      - -c
      - {{ printf "%s || { cat /run/cri-resmgr-installer/alive; exit 1; }" $fresh | toRawJson }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}
