{{/* Owns what the pods of all three components have in common. Each takes (dict "root" $ "component" …). */}}

{{- define "vestibule.image" -}}
{{- $own := (index .root.Values .component).image -}}
{{- $registry := default .root.Values.image.registry .root.Values.global.imageRegistry -}}
{{- $name := ternary (printf "%s/%s" $registry $own.repository) $own.repository (ne $registry "") -}}
{{- if $own.digest -}}
{{ $name }}@{{ $own.digest }}
{{- else -}}
{{ $name }}:{{ $own.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "vestibule.podMetadata" -}}
labels:
  {{- $own := include "vestibule.podSelector" . | fromYaml }}
  {{- $more := merge (dict) (index .root.Values .component).podLabels .root.Values.commonLabels }}
  {{- /* The selector's labels win over whatever else is wanted. */}}
  {{- toYaml (merge (dict) $own $more (dict "app.kubernetes.io/part-of" "vestibule")) | nindent 2 }}
{{- with (index .root.Values .component).podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Who the pod runs as, and where. */}}
{{- define "vestibule.podSpec" -}}
{{- $own := index .root.Values .component -}}
serviceAccountName: {{ include "vestibule.fullname" .root }}-{{ .component }}
# What a pod needs of its identity is mounted below, by name.
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # Projected tokens and Secrets belong to root; the group may read them.
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
  {{- $sysctls := $own.sysctls }}
  {{- /* Before 1.32 neither the kubelet nor Pod Security lets a pod set this one. Kubelets may be three minor versions older. */}}
  {{- if and (kindIs "map" $sysctls) (semverCompare ">=1.35.0-0" .root.Capabilities.KubeVersion.Version) }}
  {{- $sysctls = merge (dict) $sysctls (dict "net.ipv4.tcp_rmem" "4096 32768 6291456") }}
  {{- end }}
  {{- with $sysctls }}
  sysctls:
    {{- range $name, $value := . }}
    - name: {{ $name | quote }}
      value: {{ $value | quote }}
    {{- end }}
  {{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- with $own.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (eq .component "proxy") }}
    # Nodes that these pods cannot run on do not count as empty ones, and neither do the pods of the
    # revision that is on its way out.
    nodeTaintsPolicy: Honor
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "vestibule.podSelector" . | nindent 8 }}
  {{- end }}
{{- end -}}

{{/* What every container starts with. */}}
{{- define "vestibule.container" -}}
{{- $own := index .root.Values .component -}}
name: {{ .component }}
image: {{ include "vestibule.image" . | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  runAsNonRoot: true
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
resources:
  {{- with $own.resources.requests }}
  requests:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $own.resources.limits }}
  limits:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "vestibule.env" -}}
- name: RUST_LOG
  {{- /* Below errors, kube_client logs answers of the API server as they are, Secrets included. */}}
  value: {{ ternary .root.Values.logging.level (printf "%s,kube_client=error" .root.Values.logging.level) (eq .component "proxy") | quote }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- with (index .root.Values .component).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Startup may take as long as it takes to read a large cluster; only a process that hangs is killed.

Kubernetes takes a pod that ends out of Services by itself. What serves connections stays ready until it accepts no more:
then kube-proxy goes on with it where it has no other endpoint, as on a node whose next pod cannot start yet.
*/}}
{{- define "vestibule.probes" -}}
livenessProbe:
  httpGet:
    path: /healthz
    port: health
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: {{ ternary "/readyz" "/servingz" (eq .component "operator") }}
    port: health
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* The token of the Kubernetes API, where clients look for it. */}}
{{- define "vestibule.apiAccess" -}}
name: api-access
projected:
  defaultMode: 0440
  sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: 3607
    - configMap:
        name: kube-root-ca.crt
        items:
          - key: ca.crt
            path: ca.crt
    - downwardAPI:
        items:
          - path: namespace
            fieldRef:
              fieldPath: metadata.namespace
{{- end -}}

{{/* Replicas go one by one, the new one first. */}}
{{- define "vestibule.strategy" -}}
revisionHistoryLimit: 3
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: 1
    maxUnavailable: 0
selector:
  matchLabels:
    {{- include "vestibule.podSelector" . | nindent 4 }}
{{- end -}}

{{- define "vestibule.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "vestibule.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  # Pods that do not work anyway do not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "vestibule.podSelector" . | nindent 6 }}
{{- end -}}

{{- define "vestibule.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "vestibule.metadata" . | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}
