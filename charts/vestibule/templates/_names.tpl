{{/* Owns the names: everything is called after the release, cluster-wide things after its namespace too. */}}

{{- define "vestibule.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
Prefix of every name: at most 49 characters, because Services have at most 63 and the operator appends
`-gw-` and ten digits. A longer one is cut and keeps a digest, so that two never become one.
*/}}
{{- define "vestibule.fullname" -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{-   $name := include "vestibule.name" . -}}
{{-   $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- /* Releases may have dots in their names, Services may not. */ -}}
{{- $plain := replace "." "-" $full -}}
{{- if not (regexMatch "^[a-z]" $plain) -}}
{{-   fail (printf "Services cannot be called %s-…, because names of Services begin with a letter: set fullnameOverride, or call the release something else." $plain) -}}
{{- end -}}
{{- if or (ne $plain $full) (gt (len $plain) 49) -}}
{{-   printf "%s-%s" ($plain | trunc 40 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- else -}}
{{-   $plain -}}
{{- end -}}
{{- end -}}

{{- define "vestibule.clusterName" -}}
{{- $full := include "vestibule.fullname" . -}}
{{- ternary $full (printf "%s-%s" $full .Release.Namespace) (eq $full .Release.Namespace) -}}
{{- end -}}

{{- define "vestibule.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: vestibule
{{ include "vestibule.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vestibule.selector" -}}
app.kubernetes.io/name: {{ include "vestibule.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* metadata of an object of one component. Takes (dict "root" $ "component" "proxy"). */}}
{{- define "vestibule.metadata" -}}
name: {{ include "vestibule.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "vestibule.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The same of a cluster-scoped object. */}}
{{- define "vestibule.clusterMetadata" -}}
name: {{ include "vestibule.clusterName" .root }}-{{ .component }}
labels:
  {{- include "vestibule.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels that the pods of a component are found by. They never change in the life of a release. */}}
{{- define "vestibule.podSelector" -}}
{{ include "vestibule.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Username of the operator's identity, for admission policies. */}}
{{- define "vestibule.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "vestibule.fullname" . }}-operator
{{- end -}}

{{/* The labels of proxies as the operator's flag: k=v,k=v. */}}
{{- define "vestibule.proxySelectorFlag" -}}
{{- $pairs := list -}}
{{- range $key, $value := include "vestibule.podSelector" (dict "root" . "component" "proxy") | fromYaml -}}
{{-   $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}
