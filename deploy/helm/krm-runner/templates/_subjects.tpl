{{- define "krm-runner.subjects" -}}
- kind: ServiceAccount
  name: {{ .Values.serviceAccount.name }}
  namespace: {{ .Release.Namespace }}
{{- if .Values.serviceAccount.bindDefault }}
- kind: ServiceAccount
  name: default
  namespace: {{ .Release.Namespace }}
{{- end }}
{{- end }}
