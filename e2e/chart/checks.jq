# What has to hold of every rendering of the chart. Input: the objects, as one array. Output: a line for
# each thing that does not. Arguments: $namespace of the release.

def id: "\(.kind) \(.metadata.namespace // "")/\(.metadata.name)";
def complain($wrong; $what): if $wrong then "\(id): \($what)" else empty end;

def component: .metadata.labels["app.kubernetes.io/component"];

def cluster_scoped: ["ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "GatewayClass",
    "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

# Every object: where it belongs, and whose it is.
def object_checks:
    .kind as $kind
    | (if cluster_scoped | index($kind)
       then complain(.metadata.namespace != null; "a cluster-scoped object has a namespace")
       elif $kind == "RoleBinding" and component == "secrets"
       then complain(.metadata.namespace == null; "is in no namespace")
       else complain(.metadata.namespace != $namespace; "is not in the release's namespace") end),
      complain(.metadata.labels["app.kubernetes.io/instance"] == null; "has no label of its release"),
      complain(.metadata.labels["app.kubernetes.io/managed-by"] != "Helm"; "is not labelled as Helm's"),
      complain([.metadata.labels[] | type] | any(. != "string"); "has a label that is not a string"),
      complain([.metadata.labels[] | length] | any(. > 63); "has a label that is too long"),
      complain($kind == "Service" and (.metadata.name | test("^[a-z][-a-z0-9]{0,61}[a-z0-9]$") | not);
          "is no name of a Service"),
      complain(.metadata.name | length > 253; "has a name that is too long"),
      # A schema may have a field of that name.
      complain($kind != "CustomResourceDefinition" and ([.. | objects | has("caBundle")] | any);
          "has a caBundle: an upgrade would reset the operator's");

def container_checks($of):
    "\($of) container \(.name)" as $of
    | (.securityContext // {}) as $security
    | def bad($wrong; $what): if $wrong then "\($of): \($what)" else empty end;
      bad($security.runAsNonRoot != true; "may run as root"),
      bad($security.readOnlyRootFilesystem != true; "can write to its root filesystem"),
      bad($security.allowPrivilegeEscalation != false; "can gain privileges"),
      bad($security.capabilities != {drop: ["ALL"]}; "keeps capabilities"),
      bad($security.seccompProfile.type != "RuntimeDefault"; "has no seccomp profile"),
      bad($security.privileged == true; "is privileged"),
      bad(.resources.requests.cpu == null or .resources.requests.memory == null; "requests no resources"),
      bad(.resources.limits.cpu != null; "has a limit on CPU"),
      bad(.livenessProbe.httpGet == null or .readinessProbe.httpGet == null; "has no probes"),
      bad([.readinessProbe.httpGet.port, .livenessProbe.httpGet.port] - [.ports[].name] != []; "probes a port it lacks"),
      bad(.image | test(":latest$|^[^:@]+$"); "has an image without a version"),
      bad([.env[].name] | length != (unique | length); "has an environment variable twice"),
      bad(.command != null; "has a command: images have one program");

def pod_checks($of):
    def bad($wrong; $what): if $wrong then "\($of): \($what)" else empty end;
    bad(.automountServiceAccountToken != false; "mounts a token it did not ask for"),
    bad(.hostNetwork == true or .hostPID == true or .hostIPC == true; "shares the node's namespaces"),
    # These two are safe everywhere that the chart sets them. Of any other one, the kubelet may refuse the pod.
    bad([.securityContext.sysctls[]?.name] - ["net.ipv4.ip_local_port_range", "net.ipv4.tcp_rmem"] != []; "sets a sysctl that may not be safe"),
    bad([.volumes[]? | keys[]] - ["name", "projected", "secret", "configMap"] != []; "has a volume of another kind"),
    bad([.containers[].ports[]? | select(.hostPort != null or .containerPort < 1024)] != []; "takes a privileged or a node's port"),
    bad(.securityContext.runAsNonRoot != true or .securityContext.seccompProfile.type != "RuntimeDefault";
        "is not restricted as a pod"),
    bad(.securityContext.runAsUser != 65532; "runs as another user than the images are made for"),
    bad((.topologySpreadConstraints // []) == []; "is not spread"),
    bad(([.volumes[]?.name] | sort) != ([.containers[].volumeMounts[]?.name] | sort); "has volumes that nothing mounts"),
    (.containers[] | container_checks($of));

def rules_touch($group; $resource):
    [.rules[]? | select((.apiGroups | index($group)) and (.resources | index($resource)))];

def role_checks:
    complain([.rules[]? | .verbs[], .resources[], .apiGroups[]] | any(. == "*"); "grants with *"),
    complain([.rules[]?.verbs[]] | any(IN("escalate", "bind", "impersonate", "deletecollection")); "grants too much"),
    complain([.rules[]?.resources[]] | any(test("^(pods|serviceaccounts|nodes)|/(exec|token|proxy|ephemeralcontainers)$"));
        "reaches pods, nodes or tokens"),
    # Secrets: by name in the release's namespace, but for `create`, which cannot be; elsewhere by one role, that
    # may be bound to namespaces, and that a policy holds to certificates with the release's label.
    (rules_touch(""; "secrets")[] as $rule
        | complain($rule.verbs | index("delete"); "deletes Secrets"),
          complain(.kind == "ClusterRole" and component != "secrets"; "reaches Secrets everywhere"),
          complain(component != "secrets" and ($rule.verbs - ["create", "get", "list", "watch"]) != []
            and ($rule.resourceNames // []) == []; "changes Secrets of any name")),
    complain(component == "secrets" and [.rules[] | .resources[]] != ["secrets"]; "is about more than Secrets");

# What the proxies must not reach, by the block that has it: link-local addresses, and others where clouds serve metadata.
def metadata: {
    "0.0.0.0/0": ["169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"],
    "::/0": ["fe80::/10", "fd00:42::42/128", "fd00:ec2::23/128", "fd00:ec2::254/128", "fd20:ce::254/128"]};

. as $objects
| def all_of($kind): $objects[] | select(.kind == $kind);
  def named($kind; $name): [all_of($kind) | select(.metadata.name == $name)] | length == 1;
  def fullname: $objects[] | select(.kind == "Deployment" and component == "proxy") | .metadata.name | rtrimstr("-proxy");

  ($objects[] | object_checks),
  ($objects | map(id) | group_by(.)[] | select(length > 1) | "\(.[0]) is there \(length) times"),
  (all_of("Role", "ClusterRole") | role_checks),

  (all_of("Deployment")
    | . as $deployment
    | id as $id
    | (.spec.template.spec | pod_checks($id)),
      complain(.spec.strategy.rollingUpdate.maxUnavailable != 0; "may become fewer in an update"),
      complain(.spec.selector.matchLabels as $want | [.spec.template.metadata.labels | to_entries[]] as $have
          | any($want | to_entries[]; . as $pair | $have | index([$pair]) | not); "does not select its own pods"),
      complain(named("ServiceAccount"; .spec.template.spec.serviceAccountName) | not; "has no ServiceAccount of its own"),
      complain(named("PodDisruptionBudget"; .metadata.name) | not; "has no PodDisruptionBudget"),
      complain(named("Service"; .metadata.name) | not; "has no Service"),
      (all_of("PodDisruptionBudget", "Service") | select(.metadata.name == $deployment.metadata.name)
        | complain((.spec.selector.matchLabels // .spec.selector) != $deployment.spec.selector.matchLabels;
            "selects something else than its Deployment")),
      complain(([all_of("NetworkPolicy")] != []) and (named("NetworkPolicy"; .metadata.name) | not);
          "has no NetworkPolicy")),
  (all_of("ServiceAccount") | complain(.automountServiceAccountToken != false; "mounts its token everywhere")),

  # The proxy: nothing of the Kubernetes API, and time to drain.
  (all_of("Deployment") | select(component == "proxy")
    | .spec.template.spec as $pod
    | ($pod.containers[0].args | map(capture("^--(?<key>[a-z-]+)-seconds=(?<value>[0-9]+)$")?) | from_entries) as $seconds
    | complain([$pod.volumes[].projected.sources[].serviceAccountToken // empty] | . != [{audience: "vestibule-config",
          expirationSeconds: 3600, path: "token"}]; "has another token than the stream's"),
      complain($pod.terminationGracePeriodSeconds < (($seconds["shutdown-delay"] | tonumber) + ($seconds.drain | tonumber) + 5);
          "is killed before it has drained"),
      complain([$pod.containers[0].args[] | select(startswith("--admin="))] != ["--admin=127.0.0.1:15000"];
          "shows its admin endpoint"),
      complain([$pod.containers[0].args[] | select(startswith("--allow-loopback-endpoints="))]
          != ["--allow-loopback-endpoints=false"]; "connects to backends on its own loopback")),
  ([all_of("Deployment") | select(component == "operator" or component == "proxy")
      | [.spec.template.spec.containers[0].args[] | select(startswith("--deny-endpoint-cidrs="))]]
    | if length == 2 and (unique | length) == 1 then empty else "operator and proxies deny different endpoints: \(.)" end),
  (all_of("ClusterRoleBinding", "RoleBinding") | complain([.subjects[].name] | any(endswith("-proxy")); "gives the proxy rights")),

  # The webhook: reads what it judges by, and has no Secrets of the API.
  (all_of("ClusterRole") | select(component == "webhook")
    | complain([.rules[].verbs[]] - ["list", "watch"] != []; "does more than read"),
      complain(rules_touch(""; "secrets") != []; "reads Secrets")),
  (all_of("Role") | complain(component == "webhook"; "is a right that the webhook does not need")),
  (all_of("ValidatingWebhookConfiguration")
    | complain([.webhooks[].name] != ["enforced.vestibule.dev", "exempt.vestibule.dev", "shared.vestibule.dev",
          "advice.vestibule.dev"]; "does not have its four entries"),
      complain([.webhooks[] | select(.failurePolicy == "Fail") | .name] - ["enforced.vestibule.dev"] != [];
          "refuses what is not tenants' alone while nobody answers"),
      (.webhooks[] as $entry
        | complain($entry.rules | any(.operations != ["CREATE", "UPDATE"]); "asks about more than CREATE and UPDATE"),
          complain([$entry.rules[].resources[] | select(test("/|[*]"))] != []; "asks about subresources"),
          complain($entry.failurePolicy == "Fail" and ([$entry.namespaceSelector.matchExpressions[]
              | select(.operator == "NotIn") | .values[]] | (index("kube-system") and index($namespace)) | not);
              "can lock out a system namespace"),
          complain($entry.name != "exempt.vestibule.dev" and ([$entry.namespaceSelector.matchExpressions[]
              | select(.operator == "NotIn") | .values[]] | index("kube-system") | not); "asks about kube-system"),
          complain($entry.sideEffects != "None" or $entry.matchPolicy != "Equivalent" or $entry.timeoutSeconds > 5;
              "is not as admission should be"),
          complain(named("Service"; $entry.clientConfig.service.name) | not; "calls a Service that is not there"))),

  # Where egress is bounded: DNS and the API server, for the operator also the authorities that issue, and the
  # proxies, which they connect to.
  ([all_of("Deployment") | select(component == "operator") | .spec.template.spec.containers[0].args[]] | index("--acme=true")) as $acme
  | (all_of("NetworkPolicy") | select(.spec.egress != null and component != "proxy")
      | complain([.spec.egress[] | select(.to == null) | .ports[].port] | any(. != 53); "lets out to anywhere"),
        complain((.spec.egress | length) != (if component == "operator" and $acme != null then 4 else 2 end);
            "lets out to more, or less, than it needs"),
        complain([.spec.egress[].to[]? | select(.ipBlock == null) | .podSelector.matchLabels["app.kubernetes.io/component"]]
            | any(. != "proxy"); "lets out to pods that it has nothing to do with")),
  # Of the proxies: DNS, every pod, and beyond pods whatever does not serve metadata.
  (all_of("NetworkPolicy") | select(.spec.egress != null and component == "proxy")
    | complain([.spec.egress[] | select(.to == null) | [.ports[]?.port]] != [[53, 53]]; "lets out to anywhere, or not to DNS"),
      complain([.spec.egress[].to[]? | select(.ipBlock == null)] != [{namespaceSelector: {}}];
          "keeps proxies from the pods of a namespace"),
      complain([.spec.egress[].to[]?.ipBlock // empty | (metadata[.cidr] // [.cidr]) - (.except // [])] | any(. != []);
          "lets proxies reach metadata")),

  # Secrets are reached in listed namespaces, or everywhere, not both.
  ([all_of("ClusterRoleBinding", "RoleBinding") | select(component == "secrets")]
    | if . == [] then "nothing binds the role for Secrets"
      elif ([.[].kind] | unique | length) != 1 then "Secrets are bound both by namespace and everywhere"
      elif any(.roleRef.kind != "ClusterRole" or (.roleRef.name | endswith("-secrets") | not) or .subjects != [{
          kind: "ServiceAccount", name: "\(fullname)-operator", namespace: $namespace}])
      then "the role for Secrets is bound to somebody else" else empty end),

  # Alerts: each says how bad it is, what it is, what it means; only about this release.
  (all_of("PrometheusRule")
    | complain([.spec.groups[].rules[]] == []; "has no alerts"),
      (.spec.groups[].rules[] as $rule
        | complain(($rule.alert | startswith("Vestibule") | not) or ($rule.labels.severity | IN("warning", "critical") | not)
              or $rule.for == null or ($rule.annotations.summary // "") == "" or ($rule.annotations.description // "") == "";
              "\($rule.alert) is not complete"),
          complain([$rule.expr | scan("vestibule_[a-z_]+")] == []
              or ([$rule.expr | scan("vestibule_[a-z_]+")] | length)
                != ([$rule.expr | scan("vestibule_[a-z_]+[{]namespace=\"\($namespace)\"[,}]")] | length);
              "\($rule.alert) is about other releases too"))),

  # What holds the operator speaks of this release.
  ([all_of("ValidatingAdmissionPolicy") | select(component | startswith("admission-") | not) | component] | sort
    | ([$objects[] | select(.kind == "ValidatingWebhookConfiguration") | "webhook-configuration"]) as $webhook
    | if . == ["certificates", "claims", "secrets", "services"] + $webhook then empty else "admission policies hold \(.)" end),
  (all_of("ValidatingAdmissionPolicy")
    | complain(.spec.failurePolicy != "Fail"; "fails open"),
      # What holds the operator is about it; what holds everybody else's hands off its claims is not.
      (if component == "claims" then "!=" else "==" end) as $is
    | complain((component | startswith("admission-") | not) and .spec.matchConditions[0].expression != "request.userInfo.username \($is) 'system:serviceaccount:\($namespace):\(fullname)-operator'";
          "is about somebody else"),
      complain(named("ValidatingAdmissionPolicyBinding"; .metadata.name) | not; "is not bound")),
  # What holds tenants leaves the system's namespaces and its own alone, and neither statuses nor deletions.
  (all_of("ValidatingAdmissionPolicy") | select(component | startswith("admission-"))
    | .spec.matchConstraints.resourceRules[]? as $rule
    | complain($rule.operations != ["CREATE", "UPDATE"]; "asks about more than CREATE and UPDATE"),
      complain([$rule.resources[] | select(test("/|[*]"))] != []; "asks about subresources")),
  (all_of("ValidatingAdmissionPolicyBinding") | select(component | startswith("admission-"))
    | ([.spec.matchResources.namespaceSelector.matchExpressions[] | select(.operator == "NotIn") | .values[]]) as $spared
    | complain((component | endswith("-exempt") | not) and (($spared | index("kube-system")) and ($spared | index($namespace)) | not);
          "holds in a system namespace"),
      complain((component | endswith("-exempt")) and .spec.validationActions != ["Warn"]; "refuses in exempt namespaces")),
  (all_of("ClusterRole") | select(component == "owner") | complain(.rules != []; "grants something"))
