{{/* The labels that select the operator's Pods. They can never change, so they name neither version nor release. */}}
{{- define "fairlead.selector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/component: operator
{{- end }}

{{/* Who manages an object is not said on Pods, so that changing hands between kubectl and Helm restarts nothing. */}}
{{- define "fairlead.podLabels" -}}
{{ include "fairlead.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "fairlead.labels" -}}
{{ include "fairlead.podLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels that select the Pods of agents. */}}
{{- define "fairlead.agentSelector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/component: agent
{{- end }}

{{- define "fairlead.agentPodLabels" -}}
{{ include "fairlead.agentSelector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "fairlead.agentLabels" -}}
{{ include "fairlead.agentPodLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "fairlead.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default "fairlead" }}
{{- else -}}
{{ required "serviceAccount.name must name an existing ServiceAccount when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "fairlead.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "fairlead.certManager" -}}
{{- if eq .Values.manager.webhook.certificates "cert-manager" }}true{{ end }}
{{- end }}

{{/* Rules and reasons of both roles, made from the same table as `fairlead manifests`. */}}
{{- define "fairlead.rights" -}}
{{- $all := .Files.Get "files/rights.yaml" | fromYaml -}}
{{- $maker := ternary "cert-manager" "self" (eq (include "fairlead.certManager" .) "true") -}}
{{- $copies := dig "routing" "pullSecrets" "copy" true (.Values.configuration | default dict) -}}
{{ toYaml (index $all $maker (ternary "copied" "kept" $copies)) }}
{{- end }}
