{{/* CEL: whether `o` carries this release's label. */}}
{{- define "vestibule.isOurs" -}}
(has(o.metadata.labels) && 'app.kubernetes.io/managed-by' in o.metadata.labels && o.metadata.labels['app.kubernetes.io/managed-by'] == '{{ include "vestibule.fullname" . }}')
{{- end -}}

{{/* CEL: whether the object of this name belongs to OWNER. */}}
{{- define "vestibule.isOwned" -}}
(has({{ . }}.metadata.ownerReferences) && {{ . }}.metadata.ownerReferences.exists(r, r.kind == 'ClusterRole' && r.name == 'OWNER'))
{{- end -}}

{{/* CEL: the namespaces of narrow mode. */}}
{{- define "vestibule.secretNamespacesCel" -}}
{{- $quoted := list -}}
{{- range include "vestibule.secretNamespaces" . | fromJsonArray -}}
{{-   $quoted = append $quoted (printf "'%s'" .) -}}
{{- end -}}
{{- join ", " $quoted -}}
{{- end -}}

{{/* CEL: the labels of proxies. */}}
{{- define "vestibule.proxySelectorMap" -}}
{{- $pairs := list -}}
{{- range $key, $value := include "vestibule.podSelector" (dict "root" . "component" "proxy") | fromYaml -}}
{{-   $pairs = append $pairs (printf "'%s': '%s'" $key $value) -}}
{{- end -}}
{ {{- join ", " $pairs -}} }
{{- end -}}

{{- define "vestibule.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "vestibule.clusterMetadata" . | nindent 2 }}
spec:
  policyName: {{ include "vestibule.clusterName" .root }}-{{ .component }}
  validationActions: [Deny]
{{- end -}}
