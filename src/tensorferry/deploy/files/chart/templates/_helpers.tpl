{{/* The name of everything that the chart makes: the release's, with the chart's where it is not in it. */}}
{{- define "ferry.name" -}}
{{- include "ferry.nameOf" (dict "release" .Release.Name "chart" .Chart.Name) -}}
{{- end -}}

{{- define "ferry.nameOf" -}}
{{- $name := ternary .release (printf "%s-%s" .release .chart) (contains .chart .release) -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "ferry.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods of the server, and not those of `helm test`. */}}
{{- define "ferry.podSelector" -}}
{{ include "ferry.selector" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "ferry.labels" -}}
{{ include "ferry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "ferry.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "ferry.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "ferry.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* Whether there can be more than one pod. */}}
{{- define "ferry.hasSeveralPods" -}}
{{- if eq .Values.autoscaling.mode "none" -}}
{{- if gt (int .Values.replicas) 1 }}yes{{ end -}}
{{- else -}}
{{- if gt (int .Values.autoscaling.minReplicas) 1 }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* Where the server finds its models. */}}
{{- define "ferry.repository" -}}
{{- if eq .Values.models.source "url" -}}{{ .Values.models.url }}
{{- else if eq .Values.models.source "image" -}}{{ .Values.models.path }}
{{- else if and (eq .Values.models.source "oci") (eq .Values.models.mount "copy") -}}/repository
{{- else -}}{{ printf "/repository/%s" (trimPrefix "/" .Values.models.path) | trimSuffix "/" }}
{{- end -}}
{{- end -}}

{{/* The command line of the server; the options are those of `ferry serve`. */}}
{{- define "ferry.args" -}}
- serve
- {{ include "ferry.repository" . | quote }}
- --host={{ .Values.server.host }}
- --http-port=8000
- --grpc-port=8001
- --admin-port=8002
- --log-json
- --exit-timeout-secs={{ .Values.server.drainSeconds }}
- --model-control-mode={{ .Values.server.controlMode }}
- --max-memory={{ .Values.server.maxMemory }}
- --max-body={{ .Values.server.maxBody }}
- --max-requests={{ .Values.server.maxRequests }}
- --max-queue={{ .Values.server.maxQueue }}
{{- if .Values.server.trust }}
- --trust
{{- end }}
{{- if eq .Values.models.source "url" }}
- --source-cache=/repository
{{- end }}
{{- with .Values.server.allowedHosts }}
- {{ printf "--allowed-hosts=%s" (join "," .) | quote }}
{{- end }}
{{- with .Values.server.otlp }}
- {{ printf "--otlp=%s" . | quote }}
{{- end }}
{{- if .Values.keys.secret }}
- --api-keys=/etc/ferry/keys/keys.txt
{{- end }}
{{- if .Values.keys.adminSecret }}
- --admin-keys=/etc/ferry/admin-keys/keys.txt
{{- end }}
{{- if .Values.tls.secret }}
- --tls-cert=/etc/ferry/tls/tls.crt
- --tls-key=/etc/ferry/tls/tls.key
{{- end }}
{{- range .Values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* What the restricted profile of Pod Security asks of every container. */}}
{{- define "ferry.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "ferry.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Values that contradict each other, told before a cluster sees them. */}}
{{- define "ferry.check" -}}
{{- $models := .Values.models -}}
{{- if and (eq $models.source "pvc") (not $models.claim) }}{{ fail "models.source is pvc: set models.claim" }}{{ end -}}
{{- if and (eq $models.source "oci") (not $models.image) }}{{ fail "models.source is oci: set models.image" }}{{ end -}}
{{- if and (eq $models.source "url") (not $models.url) }}{{ fail "models.source is url: set models.url" }}{{ end -}}
{{- if and (eq $models.source "oci") (eq $models.mount "volume") (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "models.mount is volume, which needs Kubernetes 1.35; this is %s: set models.mount to copy" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (ne .Values.server.controlMode "none") (eq $models.source "image") -}}
{{- fail "models in the server's image do not change: set server.controlMode to none, or take them from elsewhere" -}}
{{- end -}}
{{- if ne .Values.autoscaling.mode "none" -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}{{ fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}{{ end -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.mode "hpa") (eq (int .Values.autoscaling.minReplicas) 0) }}{{ fail "autoscaling.mode hpa cannot go to 0 pods: set autoscaling.minReplicas to 1, or take keda" }}{{ end -}}
{{- if and (eq .Values.autoscaling.mode "keda") (not .Values.autoscaling.prometheus) }}{{ fail "autoscaling.mode is keda: set autoscaling.prometheus" }}{{ end -}}
{{- if and .Values.metrics.podMonitor (or .Values.keys.secret .Values.keys.adminSecret) (not .Values.metrics.keySecret) -}}
{{- fail "metrics need a key, as keys are set: name a secret with one in metrics.keySecret" -}}
{{- end -}}
{{- if and .Values.remotes (not (or (eq $models.source "image") (and (eq $models.source "oci") (eq $models.mount "copy")))) -}}
{{- fail "models of other services are put beside those of an image: set models.source to image, or to oci with models.mount copy" -}}
{{- end -}}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") }}{{ fail "service.headless needs service.type ClusterIP" }}{{ end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) }}{{ fail "gateway.enabled: name the gateways in gateway.parentRefs" }}{{ end -}}
{{- end -}}
