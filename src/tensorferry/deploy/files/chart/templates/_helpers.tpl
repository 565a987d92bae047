{{/* The name of everything that the chart makes: the release's, with the chart's where it is not in it. */}}
{{- define "ferry.name" -}}
{{- include "ferry.nameOf" (dict "release" .Release.Name "chart" .Chart.Name "isAlone" .Chart.IsRoot) -}}
{{- end -}}

{{/*
A service of a pipeline always has its own name in it: of the release text-classifier, the services text and classifier are two.
Long names are cut and told apart by a checksum; 52 letters leave room for what is added to them.
*/}}
{{- define "ferry.nameOf" -}}
{{- $name := printf "%s-%s" .release .chart -}}
{{- if and .isAlone (contains .chart .release) }}{{ $name = .release }}{{ end -}}
{{- $name = replace "." "-" $name -}}
{{- if gt (len $name) 52 }}{{ $name = printf "%s-%s" (trunc 43 $name | trimSuffix "-") (sha256sum $name | trunc 8) }}{{ end -}}
{{- $name -}}
{{- end -}}

{{/* What the server is called inside of the cluster, shortest first. */}}
{{- define "ferry.hosts" -}}
{{- $name := include "ferry.name" . -}}
{{- $full := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- list $name (printf "%s.%s" $name .Release.Namespace) $full (printf "%s.cluster.local" $full) | join "," -}}
{{- end -}}

{{- define "ferry.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The pods of the server, and not those of `helm test`. */}}
{{- define "ferry.podSelector" -}}
{{ include "ferry.selector" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "ferry.labels" -}}
{{ include "ferry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{- end -}}

{{- define "ferry.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "ferry.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "ferry.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Whether there can be more than one pod. */}}
{{- define "ferry.hasSeveralPods" -}}
{{- if eq .Values.autoscaling.mode "none" -}}
{{- if gt (int .Values.replicas) 1 }}yes{{ end -}}
{{- else -}}
{{- if gt (int .Values.autoscaling.minReplicas) 1 }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* Whether Prometheus has to see the queue for pods to be added. */}}
{{- define "ferry.scalesByQueue" -}}
{{- $scaling := .Values.autoscaling -}}
{{- if or (eq $scaling.mode "keda") (and (eq $scaling.mode "hpa") (eq $scaling.metric "queue")) }}yes{{ end -}}
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
- {{ printf "--host=%s" .Values.server.host | quote }}
- --http-port=8000
- --grpc-port=8001
- --admin-port=8002
- --log-json
{{- /* numbers of values.yaml are floats, and large ones would be written as 1e+06 */}}
- --exit-timeout-secs={{ int64 .Values.server.drainSeconds }}
- --model-control-mode={{ .Values.server.controlMode }}
- --max-memory={{ .Values.server.maxMemory }}
- --max-body={{ .Values.server.maxBody }}
- --max-requests={{ int64 .Values.server.maxRequests }}
- --max-queue={{ int64 .Values.server.maxQueue }}
{{- if .Values.server.trust }}
- --trust
{{- end }}
{{- if eq .Values.models.source "url" }}
- --source-cache=/repository
{{- end }}
{{- with .Values.server.allowedHosts }}
{{- /* helm test, services that call this one, and gateways go by names of their own */}}
{{- $names := concat . (splitList "," (include "ferry.hosts" $)) }}
{{- if $.Values.gateway.enabled }}{{ $names = concat $names $.Values.gateway.hostnames }}{{ end }}
- {{ printf "--allowed-hosts=%s" (uniq $names | join ",") | quote }}
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
runAsUser: {{ int64 .Values.runAsUser }}
runAsGroup: {{ int64 .Values.runAsUser }}
fsGroup: {{ int64 .Values.runAsUser }}
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
{{- if and (eq .Values.server.controlMode "poll") (has $models.source (list "image" "oci")) -}}
{{- fail "models in an image do not change, so there is nothing to poll: set server.controlMode to none, or take them from elsewhere" -}}
{{- end -}}
{{- if ne .Values.autoscaling.mode "none" -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}{{ fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}{{ end -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.mode "hpa") (eq (int .Values.autoscaling.minReplicas) 0) }}{{ fail "autoscaling.mode hpa cannot go to 0 pods: set autoscaling.minReplicas to 1, or take keda" }}{{ end -}}
{{- if and (eq .Values.autoscaling.mode "keda") (not .Values.autoscaling.prometheus) }}{{ fail "autoscaling.mode is keda: set autoscaling.prometheus" }}{{ end -}}
{{- if and (eq .Values.autoscaling.mode "keda") (eq (int .Values.autoscaling.minReplicas) 0) (not .Values.autoscaling.wakeQuery) -}}
{{- fail "autoscaling.minReplicas is 0, and no pod tells of a queue then: set it to 1, or autoscaling.wakeQuery to a query that sees requests elsewhere" -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor (or .Values.keys.secret .Values.keys.adminSecret) (not .Values.metrics.keySecret) -}}
{{- fail "metrics need a key, as keys are set: name a secret with one in metrics.keySecret" -}}
{{- end -}}
{{- if and .Values.remotes (not (or (eq $models.source "image") (and (eq $models.source "oci") (eq $models.mount "copy")))) -}}
{{- fail "models of other services are put beside those of an image: set models.source to image, or to oci with models.mount copy" -}}
{{- end -}}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") }}{{ fail "service.headless needs service.type ClusterIP" }}{{ end -}}
{{- if and .Values.service.headless (or (ne (int .Values.service.httpPort) 8000) (ne (int .Values.service.grpcPort) 8001)) -}}
{{- fail "service.headless: clients go to the pods themselves, so service.httpPort stays 8000 and service.grpcPort 8001" -}}
{{- end -}}
{{- if eq (int .Values.service.httpPort) (int .Values.service.grpcPort) }}{{ fail "service.httpPort and service.grpcPort are the same" }}{{ end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) }}{{ fail "gateway.enabled: name the gateways in gateway.parentRefs" }}{{ end -}}
{{- if and .Values.gateway.enabled .Values.tls.secret (not .Values.gateway.caConfigMap) -}}
{{- fail "tls.secret with gateway.enabled: a gateway speaks plain HTTP to pods unless it knows who signed their certificate: set gateway.caConfigMap, or leave TLS to the gateway" -}}
{{- end -}}
{{- if eq (add (int .Values.updates.maxSurge) (int .Values.updates.maxUnavailable)) 0 }}{{ fail "updates.maxSurge and updates.maxUnavailable are both 0: no pod could ever be updated" }}{{ end -}}
{{- if regexMatch "^[0-9]" .Release.Name }}{{ fail (printf "the release %s begins with a digit, and the name of a Service must not: choose another" .Release.Name) }}{{ end -}}
{{- end -}}
